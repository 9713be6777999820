#include <algorithm>
#include <cstdio>
#include <vector>

#include "bellows/base/config.h"
#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "command.h"
#include "plot.h"

namespace bellows {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[400];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string row(const char* name, const std::string& value) { return format("%-14s", name) + value + "\n"; }

std::string changes(const MetricsFile& run) {
  std::string path = std::to_string(run.steps.front().world_size), lines;
  if (!run.changes.empty()) path = std::to_string(run.changes.front().from);
  for (const MetricsFile::WorldChange& c : run.changes) {
    path += " -> " + std::to_string(c.to);
    lines +=
        format("  step %6lld  %2d -> %-2d  %-9s %8s  %10s moved  ", static_cast<long long>(c.step), c.from, c.to,
               c.planned ? "planned" : "unplanned", duration_text(c.ms).c_str(), human_bytes(c.bytes_moved).c_str()) +
        c.reason + "\n";
  }
  return row("world size", path + (run.changes.empty() ? " (no change)" : "")) + lines;
}

std::string accounts(const MetricsFile& run) {
  std::vector<double> ms;
  double total = 0;
  for (const auto& [name, value] : run.accounts_ms) {
    ms.push_back(value);
    total += value;
  }
  if (!(total > 0)) return "";
  const std::vector<int> shares = tenths_of_percent(ms);
  std::string text = "\nwhere the time of rank 0 went\n" + format("  %-22s %12s %7s\n", "account", "ms", "%");
  for (std::size_t i = 0; i < ms.size(); ++i) {
    std::string name = run.accounts_ms[i].first;
    for (char& c : name)
      if (c == '_') c = ' ';
    text += format("  %-22s %12.0f %7.1f\n", name.c_str(), ms[i], shares[i] / 10.0);
  }
  return text + format("  %-22s %12.0f %7.1f\n", "all", total, 100.0);
}

}  // namespace

std::string report_text(const MetricsFile& run) {
  const MetricsFile::Step &first = run.steps.front(), &last = run.steps.back();
  std::string steps = grouped(last.step);
  if (first.step != 1) steps = grouped(first.step) + " to " + steps;
  if (run.repeated > 0) steps += ", " + grouped(run.repeated) + " of them repeated after a loss";
  if (run.skipped > 0) steps += ", " + grouped(run.skipped) + " skipped (gradients not finite)";
  if (!run.ended) steps += " (the run has not ended)";
  const std::size_t tail = std::min<std::size_t>(20, run.steps.size());
  std::string text = row("steps", steps);
  text +=
      row("training loss", loss_text(first.loss, 4) + format(" at step %lld -> ", static_cast<long long>(first.step)) +
                               loss_text(run.final_loss(tail), 4) + format(" (mean of the last %zu steps)", tail));
  if (!run.evaluations.empty()) {
    const auto at = [](const MetricsFile::Evaluation& e) {
      return loss_text(e.loss, 4) + format(" at step %lld", static_cast<long long>(e.step));
    };
    text += row("held-out loss", at(run.evaluations.front()) + " -> " + at(run.evaluations.back()));
  }
  text += row("wall time", duration_text(run.wall_ms));
  text += row(
      "tokens",
      grouped(static_cast<std::int64_t>(run.tokens_with_repeats)) +
          format(", %s per second",
                 grouped(static_cast<std::int64_t>(run.wall_ms > 0 ? run.tokens_with_repeats / run.wall_ms * 1000 : 0))
                     .c_str()));
  text += row("MFU", run.has_mfu() ? format("%.1f %% on average", run.mean_mfu() * 100)
                                   : std::string("unavailable (the device's peak is unknown)"));
  text += changes(run);
  if (!run.parameters_digest.empty())
    text += row("digests", "parameters " + run.parameters_digest + ", optimizer " + run.optimizer_digest);
  return text + accounts(run);
}

int report_main(int argc, char** argv) {
  return with_errors([&] {
    std::vector<std::string> files;
    Settings settings("bellows report", "sums up a run from its metrics file");
    settings.leave_unknown();
    settings.words("METRICS.jsonl", &files, "what --metrics of a trainer wrote");
    settings.example("bellows report out/metrics.jsonl", "losses, world changes and where the time went");
    if (!settings.parse(argc, argv)) return 0;
    if (files.size() != 1)
      throw UserError("bellows report takes one metrics file, not " + std::to_string(files.size()));
    std::fputs(report_text(MetricsFile::read(files[0])).c_str(), stdout);
    return 0;
  });
}

}  // namespace bellows

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "bellows/base/config.h"
#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "bellows/elastic/session.h"
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

struct Share {
  std::string account;
  double seconds, percent;
};

/// Percents add up to 100.0 as they are printed; empty where no time was accounted for.
std::vector<Share> shares(const MetricsFile& run) {
  std::vector<double> ms;
  for (const auto& [name, value] : run.accounts_ms) ms.push_back(value);
  const std::vector<int> tenths = tenths_of_percent(ms);
  std::vector<Share> all;
  if (std::accumulate(tenths.begin(), tenths.end(), 0) == 0) return all;
  for (std::size_t i = 0; i < ms.size(); ++i) all.push_back({run.accounts_ms[i].first, ms[i] / 1000, tenths[i] / 10.0});
  return all;
}

std::string accounts(const MetricsFile& run) {
  std::string text;
  double seconds = 0;
  for (Share share : shares(run)) {
    std::replace(share.account.begin(), share.account.end(), '_', ' ');
    text += format("  %-22s %12.2f %7.1f\n", share.account.c_str(), share.seconds, share.percent);
    seconds += share.seconds;
  }
  if (text.empty()) return "";
  return "\nwhere the time of rank 0 went\n" + format("  %-22s %12s %7s\n", "account", "seconds", "%") + text +
         format("  %-22s %12.2f %7.1f\n", "all", seconds, 100.0);
}

double tokens_per_second(const MetricsFile& run) {
  return run.wall_ms > 0 ? run.tokens_with_repeats / run.wall_ms * 1000 : 0;
}

using Json = nlohmann::ordered_json;

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

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
  text +=
      row("tokens", grouped(static_cast<std::int64_t>(run.tokens_with_repeats)) +
                        format(", %s per second", grouped(static_cast<std::int64_t>(tokens_per_second(run))).c_str()));
  text += row("MFU", run.has_mfu() ? format("%.1f %% on average", run.mean_mfu() * 100)
                                   : std::string("unavailable (the device's peak is unknown)"));
  text += changes(run);
  if (!run.parameters_digest.empty())
    text += row("digests", "parameters " + run.parameters_digest + ", optimizer " + run.optimizer_digest);
  return text + accounts(run);
}

std::string report_json(const MetricsFile& run) {
  const MetricsFile::Step &first = run.steps.front(), &last = run.steps.back();
  Json json;
  json["first_step"] = first.step;
  json["last_step"] = last.step;
  json["repeated_steps"] = run.repeated;
  json["skipped_steps"] = run.skipped;
  json["ended"] = run.ended;
  json["first_loss"] = finite_or_null(first.loss);
  json["last_loss"] = finite_or_null(last.loss);
  json["mean_loss_of_last_20_steps"] = finite_or_null(run.final_loss());
  json["held_out"] = Json::array();
  for (const MetricsFile::Evaluation& e : run.evaluations)
    json["held_out"].push_back({{"step", e.step}, {"loss", finite_or_null(e.loss)}});
  json["tokens"] = static_cast<std::int64_t>(run.tokens_with_repeats);
  json["wall_seconds"] = run.wall_ms / 1000;
  json["tokens_per_second"] = tokens_per_second(run);
  json["mean_mfu"] = run.has_mfu() ? finite_or_null(run.mean_mfu()) : Json(nullptr);
  json["world_changes"] = Json::array();
  for (const MetricsFile::WorldChange& c : run.changes)
    json["world_changes"].push_back({{"step", c.step},
                                     {"from", c.from},
                                     {"to", c.to},
                                     {"planned", c.planned},
                                     {"reason", c.reason},
                                     {"bytes_moved", c.bytes_moved},
                                     {"ms", c.ms}});
  json["accounts"] = Json::array();
  for (const Share& share : shares(run))
    json["accounts"].push_back({{"account", share.account}, {"seconds", share.seconds}, {"percent", share.percent}});
  if (!run.parameters_digest.empty())
    json["digests"] = {{"parameters", run.parameters_digest}, {"optimizer", run.optimizer_digest}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int report_main(int argc, char** argv) {
  return run_main([&] {
    std::vector<std::string> files;
    bool json = false;
    Settings settings("bellows report", "sums up a run from its metrics file");
    settings.leave_unknown();
    settings.words("METRICS.jsonl", &files, "what --metrics of a trainer wrote");
    settings.add("json", &json, "prints one JSON object, for programs");
    settings.example("bellows report out/metrics.jsonl", "losses, world changes and where the time went");
    if (!settings.parse(argc, argv)) return 0;
    if (files.size() != 1)
      throw UserError("bellows report takes one metrics file, not " + std::to_string(files.size()));
    const MetricsFile run = MetricsFile::read(files[0]);
    std::fputs((json ? report_json(run) : report_text(run)).c_str(), stdout);
    return 0;
  });
}

}  // namespace bellows

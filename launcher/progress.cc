#include "progress.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"

namespace bellows {
namespace {

constexpr double kPlainPeriod = 5;  // seconds

std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string clock_time(double secs) {
  const long s = std::lround(secs);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

/// Seconds to go, from the steps of the last moments; negative: unknown.
class TimeLeft {
 public:
  double update(const StepReport& step, Nanos now) {
    if (step.step > step_ && time_ != 0) {
      const double per_step = seconds(now - time_) / static_cast<double>(step.step - step_);
      smooth_ = smooth_ < 0 ? per_step : 0.9 * smooth_ + 0.1 * per_step;
    }
    if (step.step != step_) {
      step_ = step.step;
      time_ = now;
    }
    if (smooth_ < 0 || step.total_steps <= 0) return -1;
    return smooth_ * static_cast<double>(std::max<std::int64_t>(0, step.total_steps - step.step));
  }

 private:
  std::int64_t step_ = 0;
  Nanos time_ = 0;
  double smooth_ = -1;
};

}  // namespace

std::string progress_line(const JobStatus& status, double seconds_left, int width) {
  const StepReport& s = status.step;
  std::string text;
  if (status.generation == 0) {
    int joined = 0;
    for (const MemberStatus& m : status.members) joined += m.state == "waiting";
    text = fmt::format("waiting for ranks: {} of {}", joined, status.wanted);
  } else {
    text = s.total_steps > 0 ? fmt::format("step {}/{}", s.step, s.total_steps) : fmt::format("step {}", s.step);
    if (s.step > 0) text += fmt::format("  loss {:.4f}  {} tok/s", s.loss, short_number(s.tokens_per_second));
    if (s.step > 0) text += s.mfu ? fmt::format("  MFU {:.1f} %", 100 * *s.mfu) : "  MFU unavailable";
    text += fmt::format("  {} rank{}", status.world_size, status.world_size == 1 ? "" : "s");
    if (status.phase != "training") text += " (" + status.phase + ")";
    if (seconds_left >= 0) text += "  " + clock_time(seconds_left) + " left";
  }
  const int room = std::min(30, width - static_cast<int>(text.size()) - 4);
  if (room < 8 || s.total_steps <= 0) return text.substr(0, static_cast<std::size_t>(std::max(0, width - 1)));
  const double share = std::clamp(static_cast<double>(s.step) / static_cast<double>(s.total_steps), 0.0, 1.0);
  const int full = static_cast<int>(share * room);
  std::string bar(static_cast<std::size_t>(full), '=');
  if (full < room) bar += '>';
  bar.resize(static_cast<std::size_t>(room), ' ');
  return "[" + bar + "] " + text;
}

std::string event_line(const Event& e) {
  if (e.kind == "form" || e.kind == "change") return "world: " + e.text;
  if (e.kind == "world")
    return fmt::format("world: {} -> {} ranks done in {:.0f} ms, {} moved: {}", e.from, e.to, e.ms,
                       human_bytes(static_cast<double>(e.bytes_moved)), e.text);
  if (e.kind == "decision")
    return e.from == e.to ? "" : fmt::format("decision: {} -> {} ranks: {}", e.from, e.to, e.text);
  if (e.kind == "lost" || e.kind == "failure" || e.kind == "finding" || e.kind == "limit" || e.kind == "refused")
    return e.kind + ": " + e.text;
  if (e.kind == "operator") return e.text;
  return "";
}

std::string event_json(const Event& e) {
  nlohmann::ordered_json json = {
      {"seq", e.seq}, {"unix_ms", e.unix_ms}, {"event", e.kind}, {"text", e.text}, {"generation", e.generation}};
  if (e.from != 0 || e.to != 0) {
    json["from"] = e.from;
    json["to"] = e.to;
  }
  if (e.kind == "world") {
    json["bytes_moved"] = e.bytes_moved;
    json["ms"] = e.ms;
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Progress::Progress(Coordinator& coordinator, Console& console, Style style, const std::string& events_file)
    : coordinator_(coordinator), console_(console), style_(style) {
  if (!events_file.empty()) {
    events_ = std::fopen(events_file.c_str(), "we");
    if (!events_) throw UserError(fmt::format("cannot write events to {}", events_file));
  }
  thread_ = std::thread([this] { show(); });
}

Progress::~Progress() {
  closing_ = true;
  thread_.join();
  if (events_) std::fclose(events_);
}

void Progress::show() {
  TimeLeft time_left;
  std::uint64_t seen = 0;
  std::int64_t told_step = -1;
  Nanos told_at = now_ns();
  while (true) {
    const bool last = closing_;
    const std::vector<Event> events = coordinator_.events(seen, Deadline::after(last ? 0 : 0.1));
    for (const Event& event : events) {
      seen = event.seq;
      if (events_) std::fprintf(events_, "%s\n", event_json(event).c_str());
      const std::string line = event_line(event);
      if (!line.empty() && style_ != Style::kNone) console_.line("bellows: " + line);
    }
    if (events_) std::fflush(events_);
    const JobStatus status = coordinator_.status();
    const double left = time_left.update(status.step, now_ns());
    if (style_ == Style::kBar) console_.status(last ? "" : progress_line(status, left, Console::width()));
    const bool due = seconds(now_ns() - told_at) >= kPlainPeriod || last;
    if (style_ == Style::kPlain && due && status.step.step > 0 && status.step.step != told_step) {
      console_.line("bellows: " + progress_line(status, left, 120));
      told_step = status.step.step;
      told_at = now_ns();
    }
    if (last && events.empty()) return;
  }
}

}  // namespace bellows

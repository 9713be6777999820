#include "ctl.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "bellows/base/config.h"
#include "bellows/base/nearest.h"
#include "bellows/elastic/job_client.h"
#include "bellows/elastic/session.h"
#include "command.h"
#include "job_file.h"
#include "progress.h"

namespace bellows {
namespace {

struct Flags {
  std::string job, coordinator, token;
  bool json = false;
  bool no_wait = false;
  bool follow = false;
  double timeout_s = 300;
  std::string what;
  std::vector<std::string> arguments;
};

nlohmann::ordered_json step_json(const StepReport& s) {
  nlohmann::ordered_json json = {{"step", s.step}, {"total_steps", s.total_steps},
                                 {"loss", s.loss}, {"tokens_per_second", s.tokens_per_second},
                                 {"mfu", nullptr}, {"generation", s.generation}};
  if (s.mfu) json["mfu"] = *s.mfu;
  return json;
}

nlohmann::ordered_json status_json(const JobStatus& s) {
  nlohmann::ordered_json json = {{"job", s.job},
                                 {"phase", s.phase},
                                 {"generation", s.generation},
                                 {"world_size", s.world_size},
                                 {"wanted", s.wanted},
                                 {"min", s.min_ranks},
                                 {"max", s.max_ranks},
                                 {"policy", s.policy},
                                 {"mfu_threshold", s.threshold},
                                 {"failures", s.failures},
                                 {"failure_budget", s.failure_budget},
                                 {"settled", s.settled},
                                 {"note", s.note},
                                 {"stopping", s.stopping},
                                 {"last_decision", s.last_decision},
                                 {"progress", step_json(s.step)}};
  json["window"] = nullptr;
  if (s.window) {
    const MfuWindow& w = *s.window;
    json["window"] = {{"generation", w.generation},
                      {"world_size", w.world_size},
                      {"seconds", w.seconds},
                      {"first_step", w.first_step},
                      {"last_step", w.last_step},
                      {"mfu", nullptr},
                      {"valid", w.valid},
                      {"why_invalid", w.why_invalid},
                      {"straggler_share", w.straggler_share},
                      {"slowest_rank", w.slowest_rank}};
    if (w.mfu) json["window"]["mfu"] = *w.mfu;
  }
  json["members"] = nlohmann::ordered_json::array();
  for (const MemberStatus& m : s.members)
    json["members"].push_back({{"id", m.info.id},
                               {"host", m.info.host},
                               {"pid", m.info.pid},
                               {"state", m.state},
                               {"rank", m.rank},
                               {"seen_seconds_ago", m.seen_seconds_ago},
                               {"agent", m.agent},
                               {"step", m.step.step}});
  json["agents"] = nlohmann::ordered_json::array();
  for (const AgentStatus& a : s.agents)
    json["agents"].push_back({{"id", a.id},
                              {"host", a.host},
                              {"slots", a.slots},
                              {"used", a.used},
                              {"alive", a.alive},
                              {"draining", a.draining}});
  return json;
}

void print_status(const JobStatus& s) {
  fmt::print("job         {}\n", s.job);
  fmt::print("state       {}{}, generation {}\n", s.phase, s.stopping ? " (stop requested)" : "", s.generation);
  fmt::print("ranks       {} of {} wanted (min {}, max {})\n", s.world_size, s.wanted, s.min_ranks, s.max_ranks);
  if (!s.note.empty()) fmt::print("note        {}\n", s.note);
  fmt::print("policy      {}{}\n", s.policy,
             s.policy == "manual" ? "" : fmt::format(", threshold {:.3f}", s.threshold));
  if (!s.last_decision.empty()) fmt::print("decision    {}\n", s.last_decision);
  fmt::print("failures    {} of {} allowed\n", s.failures, s.failure_budget);
  fmt::print("progress    {}\n", progress_line(s, -1, 100));
  if (s.window)
    fmt::print("window      steps {}-{}, {:.1f} s, MFU {}{}\n", s.window->first_step, s.window->last_step,
               s.window->seconds, s.window->mfu ? fmt::format("{:.1f} %", 100 * *s.window->mfu) : "unavailable",
               s.window->valid ? "" : " (does not count: " + s.window->why_invalid + ")");
  fmt::print("\n{:>4}  {:<10} {:<16} {:>8}  {:<9} {:>9} {:>7}\n", "rank", "member", "host", "pid", "state", "seen",
             "step");
  for (const MemberStatus& m : s.members) {
    if (m.state == "lost" || m.state == "released") continue;
    fmt::print("{:>4}  {:<10} {:<16} {:>8}  {:<9} {:>7.1f} s {:>7}\n", m.rank < 0 ? "-" : std::to_string(m.rank),
               m.info.id, m.info.host, m.info.pid, m.state, m.seen_seconds_ago, m.step.step);
  }
  fmt::print("\n{:<24} {:<16} {:>9}\n", "agent", "host", "slots");
  for (const AgentStatus& a : s.agents)
    fmt::print("{:<24} {:<16} {:>4} of {}{}{}\n", a.id, a.host, a.used, a.slots, a.alive ? "" : "  gone",
               a.draining ? "  draining" : "");
}

void print_event(const Event& e, bool json) {
  if (json) {
    fmt::print("{}\n", event_json(e));
  } else {
    const std::time_t secs = e.unix_ms / 1000;
    std::tm local{};
    ::localtime_r(&secs, &local);
    char when[16];
    std::strftime(when, sizeof(when), "%H:%M:%S", &local);
    const std::string numbers =
        e.kind == "world" ? fmt::format(" ({} bytes moved, {:.0f} ms)", e.bytes_moved, e.ms) : "";
    fmt::print("{}.{:03}  {:<9} {}{}\n", when, e.unix_ms % 1000, e.kind, e.text, numbers);
  }
  std::fflush(stdout);
}

/// Waits until the world is as it was asked to be, or will not become so for now. 0, or 1 with the reason printed.
int wait_until_settled(JobClient& client, int ranks, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  while (true) {
    const auto status = client.status();
    if (!status) throw UserError(status.error());
    const JobStatus& s = status.value();
    if (s.phase == "over") {
      fmt::print(stderr, "the job is over: {}\n", s.outcome ? s.outcome->text : "");
      return 1;
    }
    if (s.settled || s.wanted != ranks) {
      fmt::print("{} rank{} train{}{}\n", s.world_size, s.world_size == 1 ? "" : "s", s.world_size == 1 ? "s" : "",
                 s.note.empty() ? "" : " (" + s.note + ")");
      return s.world_size == ranks ? 0 : 1;
    }
    if (deadline.passed()) {
      fmt::print(stderr, "not done within {:.0f} s; the wish stays: {} ranks of {}\n", timeout_s, s.world_size,
                 s.wanted);
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

int number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw UserError(fmt::format("bellows ctl scale: '{}' is not a number of ranks", text));
  return value;
}

std::string one_argument(const Flags& flags, const char* what) {
  if (flags.arguments.size() == 1) return flags.arguments.front();
  throw UserError(fmt::format("bellows ctl {}: {} is missing", flags.what, what));
}

int carry_out(const Flags& flags) {
  std::string coordinator = flags.coordinator, token = flags.token;
  if (coordinator.empty() != token.empty())
    throw UserError(coordinator.empty() ? "--token is given, but not --coordinator (BELLOWS_COORDINATOR)"
                                        : "--coordinator is given, but not --token (BELLOWS_TOKEN)");
  if (coordinator.empty()) {
    const JobFile file = find_job(flags.job).value_or_throw();
    coordinator = file.address;
    token = file.token;
  }
  JobClient client(coordinator, token);
  const auto done = [](const Result<std::string>& result) {
    if (!result) throw UserError(result.error());
    if (!result.value().empty()) fmt::print("{}\n", result.value());
    return 0;
  };

  if (flags.what == "status") {
    const JobStatus status = client.status().value_or_throw();
    if (flags.json) {
      fmt::print("{}\n", status_json(status).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    } else {
      print_status(status);
    }
    return 0;
  }
  if (flags.what == "scale") {
    const int ranks = number(one_argument(flags, "the number of ranks"));
    done(client.scale(ranks));
    return flags.no_wait ? 0 : wait_until_settled(client, ranks, flags.timeout_s);
  }
  if (flags.what == "drain") return done(client.drain(one_argument(flags, "the host")));
  if (flags.what == "stop") return done(client.stop("asked for by bellows ctl"));

  std::uint64_t seen = 0;
  while (true) {
    const auto events = client.events(seen, flags.follow ? 10 : 0);
    if (!events) {
      if (flags.follow && seen > 0) return 0;  // the job has ended
      throw UserError(events.error());
    }
    for (const Event& event : events.value()) {
      print_event(event, flags.json);
      seen = event.seq;
    }
    if (!flags.follow) return 0;
  }
}

}  // namespace

int ctl_command(const std::vector<std::string>& argv) {
  Flags flags;
  std::vector<std::string> words;
  Settings settings(argv[0], "shows and steers a running job");
  settings.words("status|scale N|drain HOST|events|stop", &words, "what to do");
  settings.add("job", &flags.job, "the job's name, where several run on this host").value_name("NAME");
  settings.add("coordinator", &flags.coordinator, "the coordinator of a job elsewhere").value_name("HOST:PORT");
  settings.add("token", &flags.token, "the job's secret (better in BELLOWS_TOKEN: others can see a command line)");
  settings.add("json", &flags.json, "for machines");
  settings.add("no-wait", &flags.no_wait, "scale: do not wait until the world has changed");
  settings.add("timeout", &flags.timeout_s, "scale: longest wait").above(0).value_name("SEC");
  settings.add("follow", &flags.follow, "events: go on until the job ends").short_name('f');
  settings.accept_environment({"BELLOWS_*"});  // an operator's shell may hold a job's settings too
  return run_main([&] {
    if (!parse_words(settings, argv)) return 0;
    if (words.empty()) throw UserError(argv[0] + ": what? One of: status, scale N, drain HOST, events, stop");
    flags.what = words.front();
    flags.arguments.assign(words.begin() + 1, words.end());
    const std::vector<std::string> known = {"status", "scale", "drain", "events", "stop"};
    if (std::find(known.begin(), known.end(), flags.what) == known.end())
      throw UserError(
          fmt::format("{}: unknown action '{}'; did you mean {}?", argv[0], flags.what, nearest(flags.what, known)));
    const bool takes_one = flags.what == "scale" || flags.what == "drain";
    if (flags.arguments.size() > (takes_one ? 1u : 0u))
      throw UserError(fmt::format("{} {}: '{}' is one argument too many", argv[0], flags.what, flags.arguments.back()));
    return carry_out(flags);
  });
}

}  // namespace bellows

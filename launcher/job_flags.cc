#include "job_flags.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>

#include "bellows/base/error.h"
#include "token.h"

namespace bellows {

void JobFlags::add_to(Settings& settings) {
  settings.group("World");
  settings.add("ranks", &job.ranks, "ranks at the start").short_name('n').at_least(1);
  settings.add("min", &min_ranks_, "fewest ranks the job may have; 0: as many as at the start").at_least(0);
  settings.add("max", &max_ranks_, "most ranks the job may have; 0: as many as at the start").at_least(0);
  settings
      .add("failure-budget", &failure_budget_,
           "lost ranks the job survives; 0: the first one ends it; -1: 10 if min < max, else 0")
      .at_least(-1);

  settings.group("Policy");
  settings.add("policy", &policy_, "who changes the world; not given: manual if min = max, else mfu-guard")
      .choices({"manual", "mfu-guard", "mfu-threshold"});
  settings.add("mfu-threshold", &job.policy.threshold, "MFU below which ranks are released").range(0, 1);
  settings.add("window", &window_s, "length of an MFU window").above(0).value_name("SEC");
  settings.add("windows", &job.policy.windows, "valid windows in a row before anything is done").at_least(1);
  settings.add("fraction", &job.policy.fraction, "mfu-threshold: share of the ranks released or asked for at once")
      .range(0, 1);
  settings.add("literal", &job.policy.literal, "mfu-threshold: every window decides, no minimum of one rank");
  settings.add("ladder", &ladder_, "mfu-guard: admissible sizes; not given: min, powers of two, max")
      .commas()
      .value_name("A,B,...");
  settings
      .add("data-wait-gate", &job.policy.data_wait_gate, "data wait over compute above which the world is left alone")
      .at_least(0);
  settings.add("straggler-gate", &job.policy.straggler_gate, "the same for the slowest rank's compute over the median")
      .at_least(0);

  settings.group("Patience");
  settings.add("heartbeat-limit", &job.heartbeat_limit_s, "silence after which a rank is lost")
      .above(0)
      .value_name("SEC");
  settings.add("suspect-limit", &job.suspect_s, "the same for a rank that its peers reported or that hung up")
      .above(0)
      .value_name("SEC");
  settings.add("start-timeout", &job.start_timeout_s, "for the ranks to join at the start").above(0).value_name("SEC");
  settings.add("grow-timeout", &job.grow_timeout_s, "for new ranks to join a running job").above(0).value_name("SEC");
  settings.add("regroup-timeout", &job.regroup_timeout_s, "for ranks to come back from a failed collective")
      .above(0)
      .value_name("SEC");

  settings.group("Coordinator");
  settings.add("job", &job.name, "name of the job; not given: the program's name and four digits").value_name("NAME");
  settings.add("port", &coordinator.port, "port to listen on; 0: a free one").range(0, 65535);
  settings.add("bind", &coordinator.bind, "address to listen on").value_name("ADDRESS");
  settings.add("token", &coordinator.token, "the job's secret, better in BELLOWS_TOKEN; not given: a new one");
  settings.add("events", &events, "write every event to this file, one JSON object a line").value_name("FILE.jsonl");
}

void JobFlags::complete(const std::string& program) {
  job.min_ranks = min_ranks_ > 0 ? min_ranks_ : max_ranks_ > 0 ? std::min(job.ranks, max_ranks_) : job.ranks;
  job.max_ranks = max_ranks_ > 0 ? max_ranks_ : std::max(job.ranks, job.min_ranks);
  if (job.min_ranks > job.max_ranks)
    throw UserError(fmt::format("--min {} is above --max {}", job.min_ranks, job.max_ranks));
  if (job.ranks < job.min_ranks || job.ranks > job.max_ranks)
    throw UserError(fmt::format("-n {} is outside --min {} --max {}", job.ranks, job.min_ranks, job.max_ranks));
  const bool fixed = job.min_ranks == job.max_ranks;
  job.policy.name = !policy_.empty() ? policy_ : fixed ? "manual" : "mfu-guard";
  job.policy.min_ranks = job.min_ranks;
  job.policy.max_ranks = job.max_ranks;
  job.failure_budget = failure_budget_ >= 0 ? failure_budget_ : fixed ? 0 : 10;
  for (const std::string& part : ladder_) {
    int size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc() || end != part.data() + part.size() || size < 1)
      throw UserError(fmt::format("--ladder: '{}' is not a number of ranks", part));
    job.policy.ladder.push_back(size);
  }
  if (!job.policy.ladder.empty() && guard_ladder(job.policy).empty())
    throw UserError(fmt::format("--ladder {}: no size between --min {} and --max {}", fmt::join(ladder_, ","),
                                job.min_ranks, job.max_ranks));
  if (job.name.empty()) job.name = program + "-" + random_hex(4);
  if (job.name.find('/') != std::string::npos || job.name.front() == '.')
    throw UserError("--job " + job.name + ": a plain name is needed, without '/' and not beginning with '.'");
  if (coordinator.token.empty()) coordinator.token = random_hex(32);
}

}  // namespace bellows

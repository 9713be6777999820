#include "binding.h"

#include <spdlog/fmt/fmt.h>

#include "bellows/base/error.h"

namespace bellows {

void BindFlags::add_to(Settings& settings) {
  settings
      .add("bind-to", &bind_to,
           "processors of each rank: all, a run of whole cores, or its NUMA nodes; auto: numa where it can only help")
      .choices({"auto", "none", "core", "numa"});
  settings.add("bind-strict", &strict, "ranks that cannot be bound as asked are an error, not a warning");
  settings.add("topology", &topology_file, "take the host to be as recorded in this file (see bellows doctor --record)")
      .value_name("FILE");
}

HostTopology BindFlags::host(const std::string& name) const {
  if (topology_file.empty()) return this_host();
  const std::vector<HostTopology> hosts = load_topology(topology_file).value_or_throw().hosts;
  std::string names;
  for (const HostTopology& host : hosts) {
    if (host.name == name || hosts.size() == 1) return host;
    names += (names.empty() ? "" : ", ") + host.name;
  }
  throw UserError(fmt::format("--topology {}: has no host '{}', but {}", topology_file, name, names));
}

BindPlan BindFlags::plan(const HostTopology& host, int slots, const CpuSet& allowed, bool fixed_world) const {
  BindMode mode = BindMode::kNone;
  if (bind_to == "auto") mode = automatic_bind(host, slots, allowed, fixed_world);
  if (bind_to == "core") mode = BindMode::kCore;
  if (bind_to == "numa") mode = BindMode::kNuma;
  BindPlan plan = bind_plan(host, slots, allowed, mode);
  if (strict && !plan.note.empty()) throw UserError("--bind-strict: " + plan.note);
  return plan;
}

std::string show_topology(const BindFlags& flags, int ranks, int slots, bool fixed_world) {
  const bool recorded = !flags.topology_file.empty();
  Topology topology;
  if (recorded) topology.hosts = load_topology(flags.topology_file).value_or_throw().hosts;
  if (!recorded) topology.hosts = {this_host()};
  const int hosts = static_cast<int>(topology.hosts.size());
  if (slots == 0) slots = (ranks + hosts - 1) / hosts;
  if (slots < (ranks + hosts - 1) / hosts)
    throw UserError(fmt::format("{} ranks do not fit on {} host{} of {} slot{}", ranks, hosts, hosts == 1 ? "" : "s",
                                slots, slots == 1 ? "" : "s"));
  std::string text, notes;
  for (int h = 0; h < hosts; ++h) {
    const HostTopology& host = topology.hosts[static_cast<std::size_t>(h)];
    text += picture(host) + "\n";
    const BindPlan plan = flags.plan(host, slots, recorded ? host.processors() : allowed_processors(), fixed_world);
    if (!plan.note.empty()) notes += host.name + ": " + plan.note + "\n";
    for (int slot = 0; slot < slots && static_cast<int>(topology.ranks.size()) < ranks; ++slot)
      topology.ranks.push_back({h, slot, plan.slots[static_cast<std::size_t>(slot)]});
  }
  return text + picture_of_ranks(topology) + notes;
}

}  // namespace bellows

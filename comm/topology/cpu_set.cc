#include <sched.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "bellows/comm/topology.h"

namespace bellows {
namespace {

constexpr int kMostProcessors = 1 << 16;

// A number at the front of `text`, cut off; -1: there is none in range.
int take_number(std::string_view* text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || number < 0 || number >= kMostProcessors) return -1;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return number;
}

}  // namespace

std::string cpu_list(const CpuSet& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (end > i) text += "-" + std::to_string(cpus[end]);
    i = end + 1;
  }
  return text;
}

Result<CpuSet> parse_cpu_list(const std::string& text) {
  CpuSet cpus;
  std::string_view rest = text;
  while (!rest.empty()) {
    const int first = take_number(&rest);
    int last = first;
    if (first >= 0 && rest.starts_with("-")) {
      rest.remove_prefix(1);
      last = take_number(&rest);
    }
    const bool more = rest.starts_with(",");
    if (first < 0 || last < first || (!more && !rest.empty()) || (more && rest.size() == 1))
      return Result<CpuSet>::failure("'" + text.substr(0, 80) + "' is not a list of processors such as 0-3,8");
    // Descending or overlapping lists are refused: that also bounds the length of the result.
    if (!cpus.empty() && first <= cpus.back())
      return Result<CpuSet>::failure("'" + text.substr(0, 80) + "': processor " + std::to_string(first) +
                                     " is out of order or stands twice");
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (more) rest.remove_prefix(1);
  }
  return cpus;
}

CpuSet intersect(const CpuSet& a, const CpuSet& b) {
  CpuSet both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// Hosts with more than 1024 processors refuse a plain cpu_set_t.
CpuSet allowed_processors() {
  CpuSet cpus;
  for (int room = CPU_SETSIZE; room <= kMostProcessors && cpus.empty(); room *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(room));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(room));
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; fits && cpu < room; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    CPU_FREE(set);
  }
  return cpus;
}

}  // namespace bellows

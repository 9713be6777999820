#include <string>

#include "bellows/base/error.h"
#include "bellows/optimizer/optimizer.h"

namespace bellows {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)();
};

// One row per optimizer: the shared test suite runs every row.
constexpr Entry kOptimizers[] = {
    {"adamw", [] { return make_adamw(); }},
    {"sgd", [] { return make_sgd(); }},
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(std::string_view name) {
  std::string known;
  for (const Entry& entry : kOptimizers) {
    if (entry.name == name) return entry.make();
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw UserError("unknown optimizer '" + std::string(name) + "'; known: " + known);
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kOptimizers) names.emplace_back(entry.name);
  return names;
}

}  // namespace bellows

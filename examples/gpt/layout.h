#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "config.h"

namespace gpt {

/// How a parameter starts: all zeros, all ones, or normal with `stddev`.
struct Start {
  enum class Kind { kZeros, kOnes, kNormal };
  Kind kind = Kind::kZeros;
  float stddev = 0;
};

struct GptParameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< projections are (out, in)
  Start start;
  bool decay = false;      ///< weight decay: matrices and tables, not norms and biases
  std::size_t offset = 0;  ///< first element in its unit
  std::size_t count = 0;
};

/// Parameters that are present together, in the order of their memory.
struct GptUnit {
  std::string name;
  std::vector<GptParameter> parameters;
  std::size_t count = 0;  ///< elements
  int backward_uses = 1;  ///< 2: the embedding that is also the head
  const GptParameter& find(const std::string& suffix) const;
  bool has(const std::string& suffix) const;
};

/// The units of a model: the embedding, every block, and the final norm with the head. Names, shapes and starting
/// values follow GPT-2: normal 0.02, projections back into the residual stream scaled by 1/sqrt(2 layers).
struct GptLayout {
  explicit GptLayout(const GptConfig& config);

  std::vector<GptUnit> units;
  const GptUnit& embedding() const { return units.front(); }
  const GptUnit& block(int layer) const { return units[1 + layer]; }
  const GptUnit& head() const { return units.back(); }
  std::size_t total() const;
};

}  // namespace gpt

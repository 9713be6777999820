#include "layout.h"

#include <cmath>

#include "bellows/base/check.h"

namespace gpt {
namespace {

constexpr float kStddev = 0.02f;

class UnitBuilder {
 public:
  explicit UnitBuilder(std::string name) { unit_.name = std::move(name); }

  UnitBuilder& matrix(const std::string& name, std::int64_t out, std::int64_t in, float stddev = kStddev) {
    return add(name, {out, in}, {Start::Kind::kNormal, stddev}, true);
  }
  UnitBuilder& vector(const std::string& name, std::int64_t size, Start::Kind kind) {
    return add(name, {size}, {kind, 0}, false);
  }
  UnitBuilder& norm(const std::string& name, const GptConfig& c) {
    vector(name + ".weight", c.dim, Start::Kind::kOnes);
    if (c.norm_bias()) vector(name + ".bias", c.dim, Start::Kind::kZeros);
    return *this;
  }
  UnitBuilder& linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias, float stddev = kStddev) {
    matrix(name + ".weight", out, in, stddev);
    if (bias) vector(name + ".bias", out, Start::Kind::kZeros);
    return *this;
  }
  GptUnit build() { return std::move(unit_); }
  GptUnit& unit() { return unit_; }

 private:
  UnitBuilder& add(const std::string& name, std::vector<std::int64_t> shape, Start start, bool decay) {
    std::size_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
    unit_.parameters.push_back({unit_.name + "." + name, std::move(shape), start, decay, unit_.count, count});
    unit_.count += count;
    return *this;
  }
  GptUnit unit_;
};

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

}  // namespace

bool GptUnit::has(const std::string& suffix) const {
  for (const auto& p : parameters)
    if (ends_with(p.name, "." + suffix)) return true;
  return false;
}

const GptParameter& GptUnit::find(const std::string& suffix) const {
  for (const auto& p : parameters)
    if (ends_with(p.name, "." + suffix)) return p;
  BELLOWS_CHECK_EQ(name + " has no parameter", suffix);
  __builtin_unreachable();
}

GptLayout::GptLayout(const GptConfig& config) {
  const GptConfig c = config.resolved();
  UnitBuilder embedding("embedding");
  embedding.matrix("tokens", c.vocab, c.dim);
  if (c.position == Position::kLearned) embedding.matrix("positions", c.seq, c.dim);
  if (c.tied) embedding.unit().backward_uses = 2;
  units.push_back(embedding.build());
  const float residual = kStddev / std::sqrt(2.0f * static_cast<float>(c.layers));
  for (int layer = 0; layer < c.layers; ++layer) {
    UnitBuilder block("block." + std::to_string(layer));
    block.norm("norm1", c);
    block.linear("attention.qkv", c.qkv_dim(), c.dim, c.bias);
    block.linear("attention.out", c.dim, c.dim, c.bias, residual);
    block.norm("norm2", c);
    block.linear("mlp.up", c.up_dim(), c.dim, c.bias);  // SwiGLU: the gate's rows, then the linear ones
    block.linear("mlp.down", c.dim, c.hidden, c.bias, residual);
    units.push_back(block.build());
  }
  UnitBuilder head("head");
  head.norm("norm", c);
  if (!c.tied) head.matrix("output", c.vocab, c.dim);
  units.push_back(head.build());
}

std::size_t GptLayout::total() const {
  std::size_t total = 0;
  for (const auto& unit : units) total += unit.count;
  return total;
}

}  // namespace gpt

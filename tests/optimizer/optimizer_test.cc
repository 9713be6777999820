#include "bellows/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "bellows/base/device.h"
#include "bellows/base/error.h"
#include "bellows/base/philox.h"

namespace bellows {
namespace {

// One shard with everything an optimizer touches; gradients of step t are a pure function of (t, element).
struct Shard {
  Shard(const Optimizer& optimizer, std::size_t n, bool with_low = true, std::size_t shift = 0)
      : size(n), offset(shift), params(n + shift), grads(n + shift), low(with_low ? n + shift : 0) {
    const Philox philox(11, 0);
    for (std::size_t i = 0; i < n; ++i) params[offset + i] = philox.normal(i);
    states.resize(optimizer.state_names().size(), std::vector<float>(n + shift));
  }
  void make_grads(std::int64_t step) {
    const Philox philox(12, static_cast<std::uint64_t>(step));
    for (std::size_t i = 0; i < size; ++i) grads[offset + i] = 3.0f * philox.normal(i);
  }
  Slice slice(std::size_t begin, std::size_t end) {
    Slice s;
    s.params = std::span(params).subspan(offset + begin, end - begin);
    s.grads = std::span<const float>(grads).subspan(offset + begin, end - begin);
    for (std::size_t k = 0; k < states.size(); ++k)
      s.state[k] = std::span(states[k]).subspan(offset + begin, end - begin);
    if (!low.empty()) s.low = std::span(low).subspan(offset + begin, end - begin);
    return s;
  }
  bool same_bits(const Shard& other) const {
    const auto equal = [&](const auto& a, const auto& b) {
      return std::memcmp(a.data() + offset, b.data() + other.offset, size * sizeof(a[0])) == 0;
    };
    bool same = equal(params, other.params) && (low.empty() || equal(low, other.low));
    for (std::size_t k = 0; k < states.size(); ++k) same = same && equal(states[k], other.states[k]);
    return same;
  }

  std::size_t size, offset;
  std::vector<float> params, grads;
  std::vector<bf16> low;
  std::vector<std::vector<float>> states;
};

Hyper hyper_of(std::int64_t step, float decay = 0.1f) {
  return {.learning_rate = 0.01f / static_cast<float>(step), .weight_decay = decay, .grad_scale = 0.125f, .step = step};
}

// The textbook formulas in double precision, sharing no code with what they check.
struct Reference {
  explicit Reference(const Shard& shard) : p(shard.params.begin(), shard.params.end()), m(p.size()), v(p.size()) {}
  void adamw(const Shard& shard, const Hyper& h, const AdamWConfig& c) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = static_cast<double>(shard.grads[i]) * h.grad_scale;
      m[i] = c.beta1 * m[i] + (1.0 - c.beta1) * g;
      v[i] = c.beta2 * v[i] + (1.0 - c.beta2) * g * g;
      const double mean = m[i] / (1.0 - std::pow(static_cast<double>(c.beta1), static_cast<double>(h.step)));
      const double square = v[i] / (1.0 - std::pow(static_cast<double>(c.beta2), static_cast<double>(h.step)));
      p[i] -= static_cast<double>(h.learning_rate) * h.weight_decay * p[i];
      p[i] -= h.learning_rate * mean / (std::sqrt(square) + c.epsilon);
    }
  }
  void sgd(const Shard& shard, const Hyper& h, const SgdConfig& c) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = static_cast<double>(shard.grads[i]) * h.grad_scale + static_cast<double>(h.weight_decay) * p[i];
      m[i] = c.momentum * m[i] + g;
      p[i] -= h.learning_rate * m[i];
    }
  }
  void expect_near(const Shard& shard, double tolerance) const {
    for (std::size_t i = 0; i < p.size(); ++i) ASSERT_NEAR(shard.params[i], p[i], tolerance) << i;
  }
  std::vector<double> p, m, v;
};

TEST(AdamW, MatchesTheTextbookInDoublePrecision) {
  const AdamWConfig config{.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  const auto optimizer = make_adamw(config);
  Shard shard(*optimizer, 1003);
  Reference reference(shard);
  for (std::int64_t step = 1; step <= 50; ++step) {
    shard.make_grads(step);
    optimizer->update(shard.slice(0, shard.size), hyper_of(step));
    reference.adamw(shard, hyper_of(step), config);
  }
  reference.expect_near(shard, 5e-6);
}

TEST(AdamW, FirstStepMovesEveryWeightByTheLearningRate) {
  const auto optimizer = make_adamw();
  Shard shard(*optimizer, 100);
  const auto before = shard.params;
  shard.make_grads(1);
  Hyper h = hyper_of(1, 0.0f);
  optimizer->update(shard.slice(0, 100), h);
  for (std::size_t i = 0; i < 100; ++i)
    EXPECT_NEAR(before[i] - shard.params[i], std::copysign(h.learning_rate, shard.grads[i]), 1e-6);
}

TEST(AdamW, DecayIsDecoupledFromTheGradient) {
  const auto optimizer = make_adamw();
  Shard shard(*optimizer, 64);
  const auto before = shard.params;
  Hyper h = hyper_of(1, 0.5f);
  optimizer->update(shard.slice(0, 64), h);  // gradients are zero
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_FLOAT_EQ(shard.params[i], before[i] * (1.0f - h.learning_rate * 0.5f));
    EXPECT_EQ(shard.states[0][i], 0.0f);
    EXPECT_EQ(shard.states[1][i], 0.0f);
  }
}

TEST(AdamW, KeepsItsBiasCorrectionRightAfterAMillionSteps) {
  const AdamWConfig config{.beta2 = 0.999999f};
  const auto optimizer = make_adamw(config);
  Shard shard(*optimizer, 16);
  Reference reference(shard);
  shard.make_grads(1);
  for (std::size_t i = 0; i < 16; ++i) shard.states[1][i] = 2.0f, reference.v[i] = 2.0;
  const Hyper h{.learning_rate = 0.1f, .weight_decay = 0, .grad_scale = 1, .step = 1'000'000};
  optimizer->update(shard.slice(0, 16), h);
  reference.adamw(shard, h, config);
  reference.expect_near(shard, 1e-6);
}

TEST(Sgd, MatchesTheTextbookWithAndWithoutMomentum) {
  for (const float momentum : {0.0f, 0.9f}) {
    const SgdConfig config{.momentum = momentum, .weight_decay = 0.01f};
    const auto optimizer = make_sgd(config);
    Shard shard(*optimizer, 517);
    Reference reference(shard);
    for (std::int64_t step = 1; step <= 30; ++step) {
      shard.make_grads(step);
      optimizer->update(shard.slice(0, shard.size), hyper_of(step, 0.01f));
      reference.sgd(shard, hyper_of(step, 0.01f), config);
    }
    reference.expect_near(shard, 1e-6);
  }
}

TEST(Sgd, KeepsNoStateWithoutMomentum) {
  EXPECT_TRUE(make_sgd({.momentum = 0})->state_names().empty());
  EXPECT_EQ(make_sgd({.momentum = 0.5f})->state_names(), std::vector<std::string>{"momentum"});
}

// What every optimizer of the registry promises.
class AnyOptimizer : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Optimizer> optimizer = make_optimizer(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Registry, AnyOptimizer, testing::ValuesIn(optimizer_names()),
                         [](const auto& test) { return test.param; });

TEST_P(AnyOptimizer, GivesTheSameBitsHoweverTheShardIsCut) {
  const std::size_t n = 1111;
  Shard whole(*optimizer, n);
  std::vector<Shard> cut;
  const std::vector<std::size_t> pieces = {1, 3, 7, 16, 31, 64, 333};
  for (std::size_t k = 0; k < pieces.size(); ++k) cut.emplace_back(*optimizer, n, true, k + 1);  // other alignments
  for (std::int64_t step = 1; step <= 5; ++step) {
    whole.make_grads(step);
    optimizer->update(whole.slice(0, n), hyper_of(step));
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      cut[k].make_grads(step);
      for (std::size_t begin = 0; begin < n; begin += pieces[k])
        optimizer->update(cut[k].slice(begin, std::min(n, begin + pieces[k])), hyper_of(step));
    }
  }
  for (std::size_t k = 0; k < pieces.size(); ++k) EXPECT_TRUE(whole.same_bits(cut[k])) << "pieces of " << pieces[k];
}

TEST_P(AnyOptimizer, TheLowCopyIsTheRoundedWeightAndChangesNothingElse) {
  Shard with(*optimizer, 777), without(*optimizer, 777, false);
  for (std::int64_t step = 1; step <= 3; ++step) {
    for (Shard* shard : {&with, &without}) {
      shard->make_grads(step);
      optimizer->update(shard->slice(0, 777), hyper_of(step));
    }
  }
  EXPECT_EQ(std::memcmp(with.params.data(), without.params.data(), 777 * sizeof(float)), 0);
  for (std::size_t i = 0; i < 777; ++i) EXPECT_EQ(with.low[i].bits, bf16(with.params[i]).bits);
}

// On CUDA devices too, where the host has some: the element functions are the same source.
TEST_P(AnyOptimizer, GivesTheSameBitsOnEveryDevice) {
  std::vector<Device*> devices = {&cpu_device()};
  if (cuda_devices()) devices.insert(devices.end(), cuda_devices().value().begin(), cuda_devices().value().end());
  for (Device* device : devices) {
    const auto stream = device->make_stream();
    for (const bool with_low : {true, false}) {
      Shard host(*optimizer, 5003, with_low), copy = host;
      const auto mirror = [&](auto& values) {
        Buffer buffer = device->allocate(values.size() * sizeof(values[0]));
        stream->copy(buffer.as<std::byte>(), std::as_bytes(std::span(values)));
        return buffer;
      };
      const Buffer params = mirror(copy.params), low = mirror(copy.low);
      std::vector<Buffer> states;
      for (auto& state : copy.states) states.push_back(mirror(state));
      for (std::int64_t step = 1; step <= 3; ++step) {
        host.make_grads(step);
        optimizer->update(host.slice(0, host.size), hyper_of(step));
        const Buffer grads = mirror(host.grads);
        Slice slice{.params = params.as<float>(), .grads = grads.as<float>(), .state = {}, .low = low.as<bf16>()};
        for (std::size_t k = 0; k < states.size(); ++k) slice.state[k] = states[k].as<float>();
        optimizer->enqueue(*stream, slice, hyper_of(step));
        stream->synchronize();
      }
      const auto fetch = [&](auto& values, const Buffer& buffer) {
        stream->copy(std::as_writable_bytes(std::span(values)), buffer.as<std::byte>());
      };
      fetch(copy.params, params);
      fetch(copy.low, low);
      for (std::size_t k = 0; k < states.size(); ++k) fetch(copy.states[k], states[k]);
      stream->synchronize();
      EXPECT_TRUE(host.same_bits(copy)) << device->name();
    }
  }
}

TEST_P(AnyOptimizer, UpdatesNothingForAnEmptySlice) {
  Shard shard(*optimizer, 4);
  const auto before = shard.params;
  optimizer->update(shard.slice(2, 2), hyper_of(1));
  EXPECT_EQ(shard.params, before);
}

TEST_P(AnyOptimizer, ANumberThatChangesTheResultChangesTheFingerprint) {
  EXPECT_EQ(optimizer->name(), GetParam());
  EXPECT_EQ(optimizer->fingerprint().find(GetParam()), 0u);
  EXPECT_EQ(optimizer->fingerprint(), make_optimizer(GetParam())->fingerprint());
  EXPECT_NE(make_adamw({.beta2 = 0.95f})->fingerprint(), make_adamw({.beta2 = 0.950001f})->fingerprint());
  EXPECT_NE(make_sgd({.momentum = 0.9f})->fingerprint(), make_sgd({.momentum = 0.8f})->fingerprint());
}

TEST(Registry, AnUnknownNameIsAnErrorNamingTheKnownOnes) {
  try {
    make_optimizer("adam");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "unknown optimizer 'adam'; known: adamw, sgd");
  }
}

TEST(Registry, RefusesSettingsOutOfRangeNamingValueAndRange) {
  try {
    make_adamw({.beta1 = 1.0f});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "adamw: beta1 = 1 must be at least 0 and below 1");
  }
  EXPECT_THROW(make_adamw({.epsilon = 0.0f}), UserError);
  EXPECT_THROW(make_adamw({.beta2 = std::nanf("")}), UserError);
  EXPECT_THROW(make_sgd({.momentum = -0.1f}), UserError);
}

}  // namespace
}  // namespace bellows

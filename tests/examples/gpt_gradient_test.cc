#include <algorithm>
#include <cmath>

#include "gpt_fixture.h"
#include "gpt_reference.h"

namespace gpt {
namespace {

struct Variant {
  const char* name;
  GptConfig config;
  int micro_batch = 2;
  double ignored = 0;
};
void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

GptConfig with(GptConfig config, void (*change)(GptConfig&)) {
  change(config);
  return config;
}

const Variant kVariants[] = {
    {"gpt2", tiny()},
    {"gpt2_untied", with(tiny(), [](GptConfig& c) { c.tied = false; })},
    {"gpt2_without_biases", with(tiny(), [](GptConfig& c) { c.bias = false; })},
    {"gpt2_rotary_swiglu_with_biases", with(tiny(),
                                            [](GptConfig& c) {
                                              c.position = Position::kRotary;
                                              c.activation = Activation::kSwiGlu;
                                            })},
    {"gpt2_rms_norm", with(tiny(), [](GptConfig& c) { c.norm = Norm::kRms; })},
    {"llama", tiny_llama()},
    {"llama_tied", with(tiny_llama(), [](GptConfig& c) { c.tied = true; })},
    {"llama_one_kv_head", with(tiny_llama(), [](GptConfig& c) { c.kv_heads = 1; })},
    {"ignored_targets", tiny(), 2, 0.4},
    {"dimensions_of_whole_vectors", with(tiny(),
                                         [](GptConfig& c) {
                                           c.dim = 32;
                                           c.heads = 2;
                                           c.hidden = 64;
                                           c.vocab = 48;
                                           c.seq = 16;
                                         })},
    // More rows than one block, with a shorter last one; two blocks of attention; a vocabulary of several slices.
    {"several_blocks",
     with(tiny(),
          [](GptConfig& c) {
            c.layers = 1;
            c.dim = 12;
            c.heads = 2;
            c.hidden = 10;
            c.seq = 75;
          }),
     2},
    {"several_slices",
     with(tiny(),
          [](GptConfig& c) {
            c.layers = 1;
            c.dim = 200;
            c.heads = 2;
            c.hidden = 20;
            c.seq = 5;
            c.vocab = 521;
          }),
     1},
};

template <class T>
void expect_gradients_of_reference(const Variant& variant, double loss_tolerance, double tolerance) {
  Rig<T> rig(variant.config, variant.micro_batch, 2);
  const Batch batch = random_batch(variant.config, variant.micro_batch, 11, variant.ignored);
  const LossSum loss = rig.step(batch);

  std::vector<double> exact(rig.size());
  for (std::size_t i = 0; i < exact.size(); ++i) exact[i] = static_cast<double>(static_cast<float>(rig.params()[i]));
  Reference reference(variant.config, exact);
  const double expected = reference.loss(batch.tokens, batch.targets);
  EXPECT_EQ(loss.tokens, std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t >= 0; }));
  EXPECT_NEAR(loss.sum, expected, loss_tolerance * std::abs(expected));

  // A few elements of every parameter; an element is off by its share of the parameter's largest gradient.
  constexpr std::size_t kSamples = 4;
  std::size_t begin = 0;
  for (const auto& unit : rig.model.layout().units)
    for (const auto& p : unit.parameters) {
      const std::span<const float> got = rig.gradient().subspan(begin, p.count);
      float largest = 0;
      for (const float g : got) largest = std::max(largest, std::abs(g));
      EXPECT_GT(largest, 0) << p.name;
      for (std::size_t s = 0; s < kSamples; ++s) {
        const std::size_t i = s == 0 ? p.count - 1 : bellows::Philox(17, begin).bits64(s) % p.count;
        ASSERT_NEAR(got[i], reference.derivative(begin + i, batch.tokens, batch.targets), tolerance * largest)
            << p.name << " element " << i << " of " << p.count;
      }
      begin += p.count;
    }
  EXPECT_TRUE(std::all_of(rig.gradient().begin(), rig.gradient().end(), [](float g) { return std::isfinite(g); }));
}

class GptGradient : public testing::TestWithParam<Variant> {};

TEST_P(GptGradient, InFloat32EqualsCentralDifferencesInFloat64) {
  expect_gradients_of_reference<float>(GetParam(), 1e-5, 2e-4);
}
TEST_P(GptGradient, InBfloat16IsCloseToCentralDifferences) {
  expect_gradients_of_reference<bellows::bf16>(GetParam(), 0.02, 0.06);
}
INSTANTIATE_TEST_SUITE_P(Variants, GptGradient, testing::ValuesIn(kVariants),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gpt

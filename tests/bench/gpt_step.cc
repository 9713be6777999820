// One micro-batch of the GPT trainer, forward and backward, without runtime and optimizer: milliseconds, share of the
// matrix peak by the MFU convention, and where the threads' time goes.
//
//   bench_gpt_step [--precision fp32|bf16] [--threads N] [--repetitions N] [--layers L] [--heads H] [--kv-heads K]
//                  [--dim D] [--seq T] [--vocab V] [--micro-batch B] [--llama]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "bellows/base/clock.h"
#include "bellows/base/memory.h"
#include "bellows/base/philox.h"
#include "bellows/base/thread_pool.h"
#include "flops.h"
#include "model.h"

namespace {

using bellows::now_ns;

// Multiply-adds of one core without any memory in the way, best of several runs; 0 where the instructions are missing.
// Twelve independent chains hide the latency; they are named one by one so that they stay in registers.
double peak_flops([[maybe_unused]] bellows::DType type) {
  double best = 0;
#if defined(__AVX512F__)
  constexpr long kRounds = 4'000'000;
  const auto timed = [&](auto step, double flops_per_vector) {
    for (int run = 0; run < 9; ++run) {
      __m512 a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
      // To the compiler twelve values that it knows nothing about, lest it computes one chain for all.
      asm volatile(""
                   : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k),
                     "+v"(l));
      const auto start = now_ns();
      for (long round = 0; round < kRounds; ++round) {
        step(a), step(b), step(c), step(d), step(e), step(f), step(g), step(h), step(i), step(j), step(k), step(l);
      }
      asm volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d), "v"(e), "v"(f), "v"(g), "v"(h), "v"(i), "v"(j), "v"(k), "v"(l));
      best = std::max(best, 12 * flops_per_vector * kRounds / (static_cast<double>(now_ns() - start) * 1e-9));
    }
  };
  const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  if (type == bellows::DType::kF32) timed([&](__m512& v) { v = _mm512_fmadd_ps(x, y, v); }, 32);
#if defined(__AVX512BF16__)
  const __m512bh u = _mm512_cvtne2ps_pbh(x, x), w = _mm512_cvtne2ps_pbh(y, y);
  if (type == bellows::DType::kBF16) timed([&](__m512& v) { v = _mm512_dpbf16_ps(v, u, w); }, 64);
#endif
#endif
  return best;
}

const char* option(int argc, char** argv, const char* name, const char* fallback) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  return fallback;
}
bool has_flag(int argc, char** argv, const char* name) {
  return std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::strcmp(a, name) == 0; });
}

template <class T>
void fill(const gpt::GptLayout& layout, T* out) {
  std::size_t at = 0;
  for (const auto& unit : layout.units)
    for (const auto& p : unit.parameters) {
      const bellows::Philox random(1, at);
      for (std::size_t i = 0; i < p.count; ++i, ++at)
        out[at] = static_cast<T>(p.start.kind == gpt::Start::Kind::kOnes     ? 1.0f
                                 : p.start.kind == gpt::Start::Kind::kNormal ? p.start.stddev * random.normal(i)
                                                                             : 0.0f);
    }
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](const char* name, const char* fallback) {
    return std::atoi(option(argc, argv, name, fallback));
  };
  gpt::GptConfig config = has_flag(argc, argv, "--llama") ? gpt::GptConfig::llama() : gpt::GptConfig{};
  config.layers = number("--layers", "6");
  config.heads = number("--heads", "6");
  config.kv_heads = number("--kv-heads", "0");
  config.dim = number("--dim", "384");
  config.seq = number("--seq", "256");
  config.vocab = number("--vocab", "8192");
  const int threads = number("--threads", "2"), repetitions = number("--repetitions", "15");
  const bool narrow = std::string(option(argc, argv, "--precision", "fp32")) == "bf16";
  const auto type = narrow ? bellows::DType::kBF16 : bellows::DType::kF32;

  bellows::ThreadPool pool(threads);
  gpt::GptModel model(config, number("--micro-batch", "4"), type, pool);
  const auto& layout = model.layout();
  bellows::HostMemory params(layout.total() * size_of(type)), grads(layout.total() * sizeof(float));
  if (narrow)
    fill(layout, params.as<bellows::bf16>().data());
  else
    fill(layout, params.as<float>().data());
  std::vector<std::size_t> begin{0};
  for (const auto& unit : layout.units) begin.push_back(begin.back() + unit.count);
  const auto param = [&](std::size_t unit) -> const void* { return params.data() + begin[unit] * size_of(type); };
  const auto grad = [&](std::size_t unit, bool accumulate) {
    return gpt::UnitGradient{grads.as<float>().data() + begin[unit], accumulate};
  };
  std::vector<std::int32_t> tokens(model.rows()), targets(model.rows());
  const bellows::Philox random(7, 0);
  for (long i = 0; i < model.rows(); ++i) {
    tokens[i] = static_cast<std::int32_t>(random.bits64(i) % config.vocab);
    targets[i] = static_cast<std::int32_t>(random.bits64(i + model.rows()) % config.vocab);
  }

  const std::size_t head = layout.units.size() - 1;
  const bool tied = model.config().tied;
  double loss = 0;
  std::vector<double> forward_ms, total_ms;
  std::array<bellows::Nanos, gpt::kKernels> spent{};
  for (int run = -2; run < repetitions; ++run) {
    model.workers().set_timed(true);
    const auto start = now_ns();
    model.embed_forward(param(0), tokens);
    for (int l = 0; l < config.layers; ++l) model.block_forward(l, param(1 + l));
    loss = model.head_forward(param(head), param(0), targets, true).sum / static_cast<double>(model.rows());
    const auto middle = now_ns();
    model.head_backward(grad(head, false), grad(0, false));
    for (int l = config.layers - 1; l >= 0; --l) model.block_backward(l, param(1 + l), grad(1 + l, false));
    model.embed_backward(grad(0, tied));
    const auto end = now_ns();
    if (run < 0) continue;
    forward_ms.push_back(static_cast<double>(middle - start) * 1e-6);
    total_ms.push_back(static_cast<double>(end - start) * 1e-6);
    const auto sums = model.workers().spent();
    if (total_ms.back() <= *std::min_element(total_ms.begin(), total_ms.end())) spent = sums;
  }
  const double best = *std::min_element(total_ms.begin(), total_ms.end());
  const auto median = [](std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
  };
  const double flops = gpt::model_flops_per_token(config) * static_cast<double>(model.rows());
  const double peak = peak_flops(type) * threads;
  std::printf("%s, %s, %ld tokens, %d threads, %.0f MiB of activations and scratch, loss %.4f\n",
              describe(model.config()).c_str(), narrow ? "bf16" : "fp32", model.rows(), threads,
              static_cast<double>(model.bytes()) / (1 << 20), loss);
  std::printf("forward %.1f ms, forward+backward %.1f ms median, %.1f ms best; %.1f GFLOP\n", median(forward_ms),
              median(total_ms), best, flops * 1e-9);
  if (peak > 0)
    std::printf("share of the matrix peak of %.0f GFLOP/s: %.1f %% median, %.1f %% best\n", peak * 1e-9,
                100 * flops / (median(total_ms) * 1e-3) / peak, 100 * flops / (best * 1e-3) / peak);
  else
    std::printf("matrix peak unknown: this program was compiled without the instructions that measure it\n");
  std::printf("where the threads' time went in the best run:\n");
  double known = 0;
  for (int k = 0; k < gpt::kKernels; ++k) {
    const double ms = static_cast<double>(spent[k]) * 1e-6 / threads;
    known += ms;
    std::printf("  %-22s %7.2f ms  %5.1f %%\n", name_of(static_cast<gpt::Kernel>(k)), ms, 100 * ms / best);
  }
  std::printf("  %-22s %7.2f ms  %5.1f %%\n", "rest, waiting", best - known, 100 * (best - known) / best);
  return 0;
}

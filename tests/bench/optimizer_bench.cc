// One call of update on one piece, in cache and out of it, by Google Benchmark. `bellows bench optimizer` measures
// whole shards on all threads against a stream triad.
#include <benchmark/benchmark.h>

#include "bellows/base/memory.h"
#include "bellows/optimizer/clip.h"
#include "bellows/optimizer/optimizer.h"

namespace {

using namespace bellows;

void step(benchmark::State& state, const char* name, bool with_low) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const auto optimizer = make_optimizer(name);
  const HostMemory params(n * 4), grads(n * 4), low(n * 2);
  HostMemory states[Slice::kMaxStates];
  Slice slice{.params = params.as<float>(), .grads = grads.as<float>(), .state = {}, .low = {}};
  for (std::size_t s = 0; s < optimizer->state_names().size(); ++s) {
    states[s] = HostMemory(n * 4);
    slice.state[s] = states[s].as<float>();
  }
  if (with_low) slice.low = low.as<bf16>();
  for (std::size_t i = 0; i < n; ++i) grads.as<float>()[i] = 1e-3f * static_cast<float>(i % 17);
  Hyper hyper{.learning_rate = 1e-4f, .weight_decay = 0.1f, .grad_scale = 1.0f, .step = 1};
  for (auto _ : state) {
    optimizer->update(slice, hyper);
    ++hyper.step;
    benchmark::ClobberMemory();
  }
  const std::size_t bytes = 12 + 8 * optimizer->state_names().size() + (with_low ? 2 : 0);
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * n * bytes));
}

void squares(benchmark::State& state) {
  const HostMemory chunk(static_cast<std::size_t>(state.range(0)) * 4);
  std::uint64_t bad = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares(chunk.as<float>(), &bad));
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}

}  // namespace

BENCHMARK_CAPTURE(step, adamw_f32, "adamw", false)->Arg(1 << 10)->Arg(1 << 14)->Arg(1 << 24);
BENCHMARK_CAPTURE(step, adamw_bf16, "adamw", true)->Arg(1 << 10)->Arg(1 << 14)->Arg(1 << 24);
BENCHMARK_CAPTURE(step, sgd_f32, "sgd", false)->Arg(1 << 14)->Arg(1 << 24);
BENCHMARK(squares)->Arg(1 << 14)->Arg(1 << 24);
BENCHMARK_MAIN();

#include "bench_optimizer.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "bellows/base/clock.h"
#include "bellows/base/config.h"
#include "bellows/base/hardware.h"
#include "bellows/base/memory.h"
#include "bellows/base/thread_pool.h"
#include "bellows/elastic/session.h"
#include "bellows/optimizer/optimizer.h"
#include "command.h"

namespace bellows {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 10;  // elements per call of update, as the engine cuts a shard

struct Options {
  std::uint64_t elements = std::uint64_t{32} << 20;
  int threads = static_cast<int>(cpu_info().allowed.size());
  int samples = 9;
  std::string clock = "wall";
  std::vector<std::string> optimizers = {"adamw", "sgd"};
  bool json = false;
};

struct Spread {
  explicit Spread(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    median = samples[samples.size() / 2];
    low = samples.front();
    high = samples.back();
  }
  double median, low, high;
};

struct Row {
  std::string optimizer, dtype;
  std::size_t bytes_per_element;
  Spread us, triad_gbps, gbps, ratio;
};

/// All arrays of one shard, allocated once; the triad uses three of them, so both see the same pages.
class Shard {
 public:
  Shard(std::size_t n, ThreadPool& pool) : n_(n), pool_(pool) {
    for (auto& array : arrays_) array = HostMemory(n * sizeof(float));
    low_ = HostMemory(n * sizeof(bf16));
    for (std::size_t i = 0; i < n; ++i) grads()[i] = 1e-3f * static_cast<float>(static_cast<int>(i % 17) - 8);
  }

  void step(const Optimizer& optimizer, const Hyper& hyper, bool with_low) {
    const std::size_t states = optimizer.state_names().size();
    pool_.run((n_ + kPiece - 1) / kPiece, [&](std::size_t piece) {
      const std::size_t begin = piece * kPiece, count = std::min(kPiece, n_ - begin);
      Slice slice{
          .params = array(0).subspan(begin, count), .grads = grads().subspan(begin, count), .state = {}, .low = {}};
      for (std::size_t s = 0; s < states; ++s) slice.state[s] = array(2 + s).subspan(begin, count);
      if (with_low) slice.low = low_.as<bf16>().subspan(begin, count);
      optimizer.update(slice, hyper);
    });
  }

  // Whole 64-byte lines for each thread.
  void triad() {
    const auto threads = static_cast<std::size_t>(pool_.threads());
    const std::size_t share = ((n_ + threads - 1) / threads + 15) / 16 * 16;
    pool_.run(threads, [&](std::size_t t) {
      const std::size_t begin = std::min(n_, t * share), count = std::min(share, n_ - begin);
      stream_triad(scratch().subspan(begin, count), array(0).subspan(begin, count), grads().subspan(begin, count),
                   0.5f);
    });
  }

 private:
  std::span<float> array(std::size_t i) const { return arrays_[i].as<float>(); }
  std::span<float> grads() const { return array(1); }
  std::span<float> scratch() const { return array(4); }

  const std::size_t n_;
  ThreadPool& pool_;
  HostMemory arrays_[5];  // parameters, gradients, two states, scratch
  HostMemory low_;
};

// Time that others took the cores away does not count by the processor's clock: for hosts that are not at rest.
double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds_of(const Options& options, const std::function<void()>& work) {
  const bool wall = options.clock == "wall";
  const double begin = wall ? seconds(now_ns()) : processor_seconds();
  work();
  const double took = wall ? seconds(now_ns()) - begin : (processor_seconds() - begin) / options.threads;
  return std::max(took, 1e-9);
}

// Parameters, states read and written; gradients read; the bfloat16 copy written.
std::size_t bytes_per_element(const Optimizer& optimizer, bool with_low) {
  return 4 * (2 + 1 + 2 * optimizer.state_names().size()) + (with_low ? 2 : 0);
}

Row measure(const Options& options, Shard& shard, const std::string& name, bool with_low) {
  const auto optimizer = make_optimizer(name);
  const std::size_t bytes = bytes_per_element(*optimizer, with_low);
  const auto n = static_cast<double>(options.elements);
  Hyper hyper{.learning_rate = 1e-4f, .weight_decay = 0.1f, .grad_scale = 1.0f, .step = 1};
  std::vector<double> us, gbps, triad, ratio;
  for (int sample = -1; sample < options.samples; ++sample) {  // the first warms up
    // In turns, so that a disturbance of the machine hits both.
    const double triad_s = seconds_of(options, [&] { shard.triad(); });
    const double step_s = seconds_of(options, [&] { shard.step(*optimizer, hyper, with_low); });
    ++hyper.step;
    if (sample < 0) continue;
    us.push_back(step_s * 1e6);
    gbps.push_back(n * static_cast<double>(bytes) / step_s * 1e-9);
    triad.push_back(n * 12 / triad_s * 1e-9);
    ratio.push_back(gbps.back() / triad.back());
  }
  return {name, with_low ? "bf16" : "f32", bytes, Spread(us), Spread(triad), Spread(gbps), Spread(ratio)};
}

void print_json(const Options& options, const std::vector<Row>& rows) {
  auto all = nlohmann::ordered_json::array();
  for (const Row& r : rows)
    all.push_back({{"op", "step"},
                   {"optimizer", r.optimizer},
                   {"dtype", r.dtype},
                   {"elements", options.elements},
                   {"threads", options.threads},
                   {"clock", options.clock},
                   {"bytes_per_element", r.bytes_per_element},
                   {"median_us", r.us.median},
                   {"min_us", r.us.low},
                   {"max_us", r.us.high},
                   {"gbps", r.gbps.median},
                   {"triad_gbps", r.triad_gbps.median},
                   {"ratio", r.ratio.median},
                   {"ratio_min", r.ratio.low},
                   {"ratio_max", r.ratio.high}});
  std::printf("%s\n", all.dump(2).c_str());
}

void print_table(const Options& options, const std::vector<Row>& rows) {
  std::printf("%.1f M elements, %d thread%s, medians of %d, %s clock\n\n", static_cast<double>(options.elements) * 1e-6,
              options.threads, options.threads == 1 ? "" : "s", options.samples, options.clock.c_str());
  std::printf("%-10s %-6s %10s %21s %8s %9s %7s %13s\n", "optimizer", "dtype", "ms", "min to max", "B/elem", "GB/s",
              "triad", "ratio");
  for (const Row& r : rows)
    std::printf("%-10s %-6s %10.2f %10.2f-%-10.2f %8zu %9.1f %7.1f %6.2f (%.2f-%.2f)\n", r.optimizer.c_str(),
                r.dtype.c_str(), r.us.median * 1e-3, r.us.low * 1e-3, r.us.high * 1e-3, r.bytes_per_element,
                r.gbps.median, r.triad_gbps.median, r.ratio.median, r.ratio.low, r.ratio.high);
  std::printf(
      "\nf32: master weights; bf16: master weights and their bfloat16 copy. triad: a = b + s c with non-temporal\n"
      "stores by the same threads, in turns with the step; ratio: GB/s over the triad's, pair by pair.\n");
}

}  // namespace

int bench_optimizer_main(int argc, char** argv) {
  return run_main([&] {
    Options options;
    Settings settings("bellows bench optimizer", "the optimizer step held against a stream triad");
    settings.add("elements", &options.elements, "parameters of the shard").range(1, 1e11);
    settings.add("threads", &options.threads, "threads").range(1, 1024);
    settings.add("samples", &options.samples, "timed repetitions").range(5, 1000);
    settings.add("optimizers", &options.optimizers, "which to measure").choices(optimizer_names()).commas();
    settings.add("clock", &options.clock, "cpu: processor time over threads, for hosts that are not at rest")
        .choices({"wall", "cpu"});
    settings.add("json", &options.json, "an array of objects instead of a table");
    settings.example("bellows bench optimizer --elements 100000000 --threads 2", "one shard of 100 million parameters");
    if (!settings.parse(argc, argv)) return 0;

    ThreadPool pool(options.threads);
    Shard shard(options.elements, pool);
    std::vector<Row> rows;
    for (const std::string& optimizer : options.optimizers)
      for (const bool with_low : {false, true}) rows.push_back(measure(options, shard, optimizer, with_low));
    options.json ? print_json(options, rows) : print_table(options, rows);
    return 0;
  });
}

}  // namespace bellows

// The embedding API at a glance: a linear model y = x·w, trained on points that come from a known w.
// Run it alone, as `bellows run -n 4 -- minimal`, or as `mpirun -n 2 minimal`: the loss has the same bits every time.
#include <cstdio>

#include "bellows/base/philox.h"
#include "bellows/elastic/session.h"

using namespace bellows;

int main() {
  return run_main([] {
    constexpr int kInputs = 64;
    Session session = Session::from_environment();

    ParameterSet parameters;
    const UnitId linear = parameters.add_unit("linear");
    const ParamId w = parameters.add(linear, "w", {kInputs}, {.init = Init::normal(0.1f)});

    TrainOptions options;
    options.engine.micro_batch = 16;   // 8 lanes of 16 points: 128 points a step
    options.engine.schedule.peak = 0.05;
    options.engine.schedule.total_steps = options.steps = 100;

    const auto step = [&](Step& step) {
      for (MicroBatch& batch : step) {
        UnitUse use = batch.backward(linear);   // present in a scope; its gradient is reduced at the scope's end
        const auto weights = use.param<float>(w);
        const auto gradient = use.grad(w);
        use.zero_grads_if_new();
        double loss = 0;
        for (const std::int64_t sample : batch.samples()) {
          const Philox x(1, sample);   // the data: a function of the sample's number alone
          float error = 0;
          for (int i = 0; i < kInputs; ++i) error += (weights[i] - 0.01f * i) * x.normal(i);
          for (int i = 0; i < kInputs; ++i) gradient[i] += error * x.normal(i);
          loss += 0.5 * error * error;
        }
        batch.report(loss, batch.samples().size());
      }
    };
    TrainHooks hooks;
    hooks.on_step = [](const StepRecord& r) {
      if (r.result.step % 20 == 0) std::printf("step %3ld  loss %.6f\n", long(r.result.step), r.result.loss);
    };
    const TrainResult result = session.train(std::move(parameters), make_adamw({.weight_decay = 0}), options, step, hooks);
    if (result.rank == 0 && result.end != TrainResult::End::kReleased)
      std::printf("parameters %s\n", result.digests.parameters.c_str());
    return 0;
  });
}

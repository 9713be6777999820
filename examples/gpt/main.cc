// gpt-train: trains a decoder-only transformer on text, on one rank or on many.
#include <unistd.h>

#include <cstdio>

#include "bellows/base/log.h"
#include "bellows/base/memory.h"
#include "bellows/runtime/memory_plan.h"
#include "options.h"
#include "sample.h"
#include "trainer.h"

namespace {

using namespace bellows;

/// What the model is, and where its bytes are: allocated on this rank beside the formula of docs/memory.md.
void print_plan(const gpt::GptOptions& options, const Engine& engine, int world_size, std::size_t activations) {
  const ParameterSet& parameters = engine.parameters();
  std::fprintf(stderr, "%s: %.2f M parameters, %.3g FLOPs per token\n", gpt::describe(options.model).c_str(),
               static_cast<double>(parameters.total()) * 1e-6, options.train.flops_per_token);
  const int states = static_cast<int>(options.make_optimizer()->state_names().size());
  const auto planned = plan_memory(parameters, engine.options(), states, world_size);
  const auto allocated = engine.memory();
  std::fprintf(stderr, "memory of rank 0 of %d, ZeRO-%d, %s:\n  %-24s %12s %12s\n", world_size, engine.options().stage,
               name_of(engine.options().precision).data(), "", "allocated", "formula");
  double sum = 0;
  for (std::size_t i = 0; i < allocated.size(); ++i) {
    sum += static_cast<double>(allocated[i].bytes);
    if (allocated[i].bytes + planned[i].bytes == 0) continue;
    std::fprintf(stderr, "  %-24s %12s %12s\n", allocated[i].name.c_str(),
                 human_bytes(static_cast<double>(allocated[i].bytes)).c_str(),
                 human_bytes(static_cast<double>(planned[i].bytes)).c_str());
  }
  std::fprintf(stderr, "  %-24s %12s\n  %-24s %12s\n", "activations and scratch",
               human_bytes(static_cast<double>(activations)).c_str(), "sum",
               human_bytes(sum + static_cast<double>(activations)).c_str());
}

/// One line per step on a pipe, one redrawn line on a terminal; the launcher draws its own and asks for none.
class Progress {
 public:
  explicit Progress(std::int64_t steps) : steps_(steps), terminal_(isatty(2)), quiet_(std::getenv("BELLOWS_MEMBER")) {}
  void show(const StepRecord& r) {
    if (quiet_) return;
    const std::int64_t every = std::max<std::int64_t>(1, steps_ / 20);
    if (!terminal_ && r.result.step % every != 0 && r.result.step != 1) return;
    char mfu[32] = "";
    if (r.mfu) std::snprintf(mfu, sizeof mfu, "  mfu %.1f %%", *r.mfu * 100);
    std::fprintf(stderr, "%sstep %lld/%lld  loss %.4f  norm %.3f  %.0f tokens/s%s%s", terminal_ ? "\r\033[K" : "",
                 static_cast<long long>(r.result.step), static_cast<long long>(steps_), r.result.loss,
                 r.result.grad_norm, r.tokens_per_second, mfu,
                 terminal_ && r.result.step < steps_ ? "" : "\n");
  }
  void evaluation(std::int64_t step, float loss) {
    if (!quiet_) std::fprintf(stderr, "%sstep %lld  held-out loss %.4f\n", terminal_ ? "\r\033[K" : "",
                              static_cast<long long>(step), loss);
  }

 private:
  const std::int64_t steps_;
  const bool terminal_, quiet_;
};

int train(int argc, char** argv) {
  const gpt::GptOptions options = gpt::parse_options(argc, argv);
  init_log("gpt-train", "info");
  Session session = Session::from_environment(options.threads);

  gpt::Source source = options.synthetic()
                           ? gpt::synthetic_source(options.model.vocab, options.model.seq, options.seed)
                           : gpt::text_source(options.data, options.model.seq, options.seed);
  TrainOptions settings = options.train;
  settings.engine.job_fingerprint = source.fingerprint + ";global_batch=" +
                                    std::to_string(settings.engine.global_batch()) +
                                    ";seq=" + std::to_string(options.model.seq) + ";seed=" + std::to_string(options.seed);
  gpt::Trainer trainer(options.model, settings.engine.micro_batch, settings.engine.precision, std::move(source),
                       session.pool());
  const ParameterSet parameters = trainer.parameters();

  Progress progress(settings.steps);
  TrainHooks hooks;
  if (trainer.source().held_out_samples > 0) hooks.evaluate = [&](Step& step) { trainer.step(step); };
  hooks.on_start = [&](const Engine& engine, const World& world) {
    print_plan(options, engine, world.world_size, trainer.model().bytes());
  };
  hooks.on_step = [&](const StepRecord& record) { progress.show(record); };
  hooks.on_evaluation = [&](std::int64_t step, float loss) { progress.evaluation(step, loss); };
  hooks.on_finish = [&](Engine& engine) {
    if (options.sample <= 0 || options.model.vocab != 256) return;
    const auto whole = engine.gather_parameters();
    if (whole.empty()) return;
    const std::string text = gpt::sample(options.model, settings.engine.precision, whole.data(), session.pool(),
                                         options.seed, options.sample, options.temperature);
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  session.train(parameters, options.make_optimizer(), settings, [&](Step& step) { trainer.step(step); }, hooks);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bellows::run_main([&] { return train(argc, argv); });
}

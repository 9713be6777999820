#include "options.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "bellows/base/config.h"
#include "bellows/base/error.h"
#include "flops.h"

namespace gpt {
namespace {

using bellows::Schedule;
using bellows::Settings;
using bellows::UserError;

/// What is told in words or in numbers of another kind than the trainer's own.
struct Raw {
  std::string architecture = "gpt2", norm, positions, activation;
  std::string precision = "fp32", schedule = "cosine";
  bool biases = true, tied = true;
  std::int64_t global_batch = 0, warmup = -1;
  int micro_batch = 4;
  double bucket_mb = 25;
};

// The launcher says how large the world may become; a job has at least as many lanes. Never fewer than 8, so that a job
// started by hand has the same lanes, and so the same numbers, as one that the launcher starts with up to 8 ranks.
int default_lanes() {
  const char* most = std::getenv("BELLOWS_SPAWN_MAX_RANKS");
  const int ranks = most != nullptr ? std::atoi(most) : 1;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::clamp(ranks, 8, 1 << 20))));
}

void declare_model(Settings& settings, GptConfig& model, Raw& raw) {
  settings.group("Model");
  settings.add("architecture", &raw.architecture, "where the other choices come from").choices({"gpt2", "llama"});
  settings.add("layers", &model.layers, "transformer blocks").at_least(1);
  settings.add("heads", &model.heads, "attention heads").at_least(1);
  settings.add("kv-heads", &model.kv_heads, "heads of keys and values; 0: as many as heads").at_least(0);
  settings.add("dim", &model.dim, "width").at_least(1);
  settings.add("hidden", &model.hidden, "width of the feed-forward layer; 0: 4 dim, SwiGLU 8/3 dim").at_least(0);
  settings.add("seq", &model.seq, "tokens in a sequence").at_least(1);
  settings.add("vocab", &model.vocab, "vocabulary; text is bytes, 256").at_least(1);
  settings.add("norm", &raw.norm, "kind of norm").choices({"layer", "rms"});
  settings.add("positions", &raw.positions, "how tokens know their place").choices({"learned", "rotary"});
  settings.add("activation", &raw.activation, "of the feed-forward layer").choices({"gelu", "swiglu"});
  settings.add("biases", &raw.biases, "biases in projections and LayerNorm");
  settings.add("tied", &raw.tied, "the output head is the embedding table");
}

void declare_training(Settings& settings, GptOptions& options, Raw& raw) {
  bellows::TrainOptions& train = options.train;
  bellows::EngineOptions& engine = train.engine;
  settings.group("Data");
  settings.add("data", &options.data, "text files, or the word synthetic").value_name("FILE").required();

  settings.group("Training");
  settings.add("steps", &train.steps, "optimizer steps").at_least(0);
  settings.add("global-batch", &raw.global_batch, "sequences in a step; 0: one micro-batch per lane")
      .value_name("SEQUENCES")
      .at_least(0);
  settings.add("micro-batch", &raw.micro_batch, "sequences computed at once").at_least(1);
  settings.add("lanes", &engine.lanes, "parts of a step, and so the most ranks; fixed for the life of a job")
      .at_least(1);
  settings.add("precision", &raw.precision, "of the computation; master weights are fp32").choices({"fp32", "bf16"});
  settings.add("lr", &engine.schedule.peak, "learning rate at its highest").above(0);
  settings.add("schedule", &raw.schedule, "course of the learning rate").choices({"cosine", "constant", "wsd"});
  settings.add("warmup", &raw.warmup, "steps of linear rise; -1: a twentieth of all").at_least(-1);
  settings.add("min-lr", &engine.schedule.floor, "final learning rate as a share of the highest").range(0, 1);
  settings.add("clip", &engine.clip_norm, "largest gradient norm; 0: no clipping").at_least(0);
  settings.add("optimizer", &options.optimizer, "what updates the weights").choices(bellows::optimizer_names());
  settings.add("weight-decay", &options.weight_decay, "of matrices").at_least(0);
  settings.add("seed", &options.seed, "of starting values, data order and samples");

  settings.group("Distribution");
  settings.add("stage", &engine.stage, "ZeRO stage").range(0, 3);
  settings.add("bucket-mb", &raw.bucket_mb, "gradients that travel together").above(0);
  settings.add("prefetch", &engine.prefetch_units, "stage 3: units gathered ahead").at_least(0);
  settings.add("threads", &options.threads, "threads of this rank").range(1, 1024);
  settings.add("transport", &train.transport, "what carries collectives; `bellows doctor` lists what there is");
  settings.add("algorithm", &train.algorithm, "how collectives travel; never changes a number")
      .choices({"auto", "direct", "ring", "halving", "hierarchical"});
  settings.add("bind", &train.bind, "address on which ranks of other hosts reach this one; not given: any of its own")
      .value_name("ADDRESS");
  settings.add("collective-timeout", &train.collective_timeout_s, "limit of one collective").value_name("SEC").above(0);

  settings.group("Output");
  settings.add("eval-every", &train.eval_every, "steps between evaluations on held-out data; 0: at the end")
      .at_least(0);
  settings.add("eval-batches", &train.eval_batches, "global batches of an evaluation").at_least(1);
  settings.add("checkpoint", &train.checkpoint, "where checkpoints go").value_name("DIR");
  settings.add("checkpoint-every", &train.checkpoint_every, "steps between checkpoints; 0: at the end").at_least(0);
  settings.add("keep", &train.keep, "checkpoints kept").at_least(1);
  settings.add("resume", &train.resume, "a checkpoint, or auto: the newest if there is one").value_name("DIR");
  settings.add("metrics", &train.metrics, "a JSON object per step, by rank 0").value_name("FILE");
  settings.add("sample", &options.sample, "bytes of text to write at the end").at_least(0);
  settings.add("temperature", &options.temperature, "of the sample; 0: always the likeliest").at_least(0);
  settings.example("gpt-train --data book.txt --steps 500 --sample 400", "trains on one rank and writes some text");
  settings.example("bellows run -n 4 -- gpt-train --data synthetic --vocab 8192 --stage 2",
                   "four ranks, random tokens");
}

void apply_architecture(const Settings& settings, GptConfig& model, const Raw& raw) {
  const GptConfig base = raw.architecture == "llama" ? GptConfig::llama() : GptConfig{};
  const auto chosen = [&](const std::string& word, const char* other, auto base_value, auto one, auto two) {
    return word.empty() ? base_value : word == other ? two : one;
  };
  model.norm = chosen(raw.norm, "rms", base.norm, Norm::kLayer, Norm::kRms);
  model.position = chosen(raw.positions, "rotary", base.position, Position::kLearned, Position::kRotary);
  model.activation = chosen(raw.activation, "swiglu", base.activation, Activation::kGelu, Activation::kSwiGlu);
  model.bias = settings.is_set("biases") ? raw.biases : base.bias;
  model.tied = settings.is_set("tied") ? raw.tied : base.tied;
  model = model.resolved();
}

void apply_batch(bellows::EngineOptions& engine, const Raw& raw) {
  engine.micro_batch = raw.micro_batch;
  const std::int64_t round = static_cast<std::int64_t>(engine.lanes) * raw.micro_batch;
  const std::int64_t batch = raw.global_batch == 0 ? round : raw.global_batch;
  if (batch % engine.lanes != 0)
    throw UserError("--global-batch " + std::to_string(batch) + " is not a multiple of --lanes " +
                    std::to_string(engine.lanes));
  if (batch % round != 0)
    throw UserError("--global-batch " + std::to_string(batch) + " on --lanes " + std::to_string(engine.lanes) +
                    " gives " + std::to_string(batch / engine.lanes) +
                    " sequences per lane, not a multiple of --micro-batch " + std::to_string(raw.micro_batch));
  engine.micro_batches_per_lane = static_cast<int>(batch / round);
}

void apply_schedule(Schedule& schedule, std::int64_t steps, const Raw& raw) {
  schedule.kind = raw.schedule == "cosine"     ? Schedule::Kind::kCosine
                  : raw.schedule == "constant" ? Schedule::Kind::kConstant
                                               : Schedule::Kind::kWarmupStableDecay;
  schedule.total_steps = steps;
  schedule.warmup_steps = raw.warmup < 0 ? steps / 20 : raw.warmup;
  if (schedule.kind == Schedule::Kind::kWarmupStableDecay) schedule.decay_steps = steps / 5;
  schedule.check();
}

}  // namespace

std::unique_ptr<bellows::Optimizer> GptOptions::make_optimizer() const {
  const auto decay = static_cast<float>(weight_decay);
  if (optimizer == "adamw") return bellows::make_adamw({.weight_decay = decay});
  if (optimizer == "sgd") return bellows::make_sgd({.weight_decay = decay});
  return bellows::make_optimizer(optimizer);
}

GptOptions parse_options(int argc, char** argv) {
  GptOptions options;
  Raw raw;
  options.train.steps = 1000;
  options.train.engine.lanes = default_lanes();
  options.train.engine.schedule.floor = 0.1;
  Settings settings("gpt-train", "trains a decoder-only transformer on text, on one rank or on many");
  declare_training(settings, options, raw);
  declare_model(settings, options.model, raw);
  if (!settings.parse(argc, argv)) std::exit(0);

  apply_architecture(settings, options.model, raw);
  if (!options.synthetic() && options.model.vocab < 256)
    throw UserError("--vocab " + std::to_string(options.model.vocab) + ": text is bytes and needs at least 256");
  bellows::EngineOptions& engine = options.train.engine;
  engine.precision = raw.precision == "bf16" ? bellows::DType::kBF16 : bellows::DType::kF32;
  engine.seed = options.seed;
  engine.bucket_bytes = static_cast<std::size_t>(raw.bucket_mb * (1 << 20));
  apply_batch(engine, raw);
  apply_schedule(engine.schedule, options.train.steps, raw);
  options.train.flops_per_token = model_flops_per_token(options.model);
  return options;
}

}  // namespace gpt

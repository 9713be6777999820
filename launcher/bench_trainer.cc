#include "bench_trainer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/base/config.h"
#include "bellows/base/error.h"
#include "bellows/base/hardware.h"
#include "bellows/elastic/session.h"
#include "command.h"

namespace bellows {
namespace {

struct Options {
  int layers = 6, heads = 6, dim = 384, seq = 256, vocab = 8192, micro_batch = 4;
  int ranks = 1, threads = 2, lanes = 0, stage = 2, steps = 8, repeats = 3;
  std::string precision = "fp32";
  bool json = false;
};

struct Sample {
  double step_ms = 0, tokens_per_second = 0, mfu = 0;
};

std::filesystem::path own_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

// The program's output is of no interest unless it fails.
void run(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw UserError("cannot start " + words[0] + ": " + std::strerror(error));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::ifstream in(log);
    const std::string said((std::istreambuf_iterator<char>(in)), {});
    throw UserError(words[0] + " failed:\n" + said);
  }
}

/// Every step of one run but the first two, which hold the start and the warm-up.
std::vector<Sample> measure(const Options& o, int ranks, int threads, const std::string& folder) {
  const std::string metrics = folder + "/metrics.jsonl";
  const int lanes = o.lanes > 0 ? o.lanes : o.ranks;
  std::vector<std::string> words;
  if (ranks > 1)
    words = {(own_folder() / "bellows").string(), "run", "-n", std::to_string(ranks), "--progress", "none", "--"};
  const std::vector<std::string> own = {(own_folder() / "gpt-train").string(),
                                        "--data",
                                        "synthetic",
                                        "--vocab",
                                        std::to_string(o.vocab),
                                        "--layers",
                                        std::to_string(o.layers),
                                        "--heads",
                                        std::to_string(o.heads),
                                        "--dim",
                                        std::to_string(o.dim),
                                        "--seq",
                                        std::to_string(o.seq),
                                        "--micro-batch",
                                        std::to_string(o.micro_batch),
                                        "--lanes",
                                        std::to_string(lanes),
                                        "--stage",
                                        std::to_string(o.stage),
                                        "--precision",
                                        o.precision,
                                        "--threads",
                                        std::to_string(threads),
                                        "--steps",
                                        std::to_string(o.steps + 2),
                                        "--eval-batches",
                                        "1",
                                        "--metrics",
                                        metrics};
  words.insert(words.end(), own.begin(), own.end());
  run(words, folder + "/log");
  std::vector<Sample> samples;
  std::ifstream in(metrics);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("event") || json["step"].get<int>() <= 2) continue;
    samples.push_back(
        {json["step_ms"], json["tokens_per_second"], json["mfu"].is_null() ? 0.0 : json["mfu"].get<double>()});
  }
  return samples;
}

template <class Field>
double median(std::vector<Sample> samples, Field field) {
  std::sort(samples.begin(), samples.end(), [&](const Sample& a, const Sample& b) { return a.*field < b.*field; });
  return samples[samples.size() / 2].*field;
}

nlohmann::ordered_json row(const Options& o, const std::vector<Sample>& samples, int ranks, int threads) {
  const auto [least, most] = std::minmax_element(
      samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.step_ms < b.step_ms; });
  nlohmann::ordered_json json;
  json["op"] = "trainer_step";
  json["dtype"] = o.precision;
  json["ranks"] = ranks;
  json["threads"] = threads;
  json["stage"] = o.stage;
  json["steps"] = samples.size();
  json["median_ms"] = median(samples, &Sample::step_ms);
  json["min_ms"] = least->step_ms;
  json["max_ms"] = most->step_ms;
  json["tokens_per_second"] = median(samples, &Sample::tokens_per_second);
  json["peak_ratio"] = median(samples, &Sample::mfu);
  return json;
}

int measure_and_print(const Options& o) {
  // Measured here, before anything else runs, and handed to every rank: all rows are held against the same peak.
  const MatrixPeak peak = matrix_peak(std::getenv("BELLOWS_PEAK_F32"), std::getenv("BELLOWS_PEAK_BF16"));
  setenv("BELLOWS_PEAK_F32", std::to_string(peak.f32).c_str(), 1);
  setenv("BELLOWS_PEAK_BF16", std::to_string(peak.bf16).c_str(), 1);
  char pattern[] = "/tmp/bellows-bench-XXXXXX";
  if (!mkdtemp(pattern)) throw UserError(std::string("cannot make a folder under /tmp: ") + std::strerror(errno));
  const std::string folder = pattern;
  struct Cleaner {
    const std::string& folder;
    ~Cleaner() {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  } cleaner{folder};

  std::vector<Sample> one, many;
  for (int repeat = 0; repeat < o.repeats; ++repeat) {
    const auto alone = measure(o, 1, o.threads, folder);
    one.insert(one.end(), alone.begin(), alone.end());
    if (o.ranks == 1) continue;
    const auto world = measure(o, o.ranks, o.threads, folder);
    many.insert(many.end(), world.begin(), world.end());
  }
  nlohmann::ordered_json rows = {row(o, one, 1, o.threads)};
  if (o.ranks > 1) {
    rows.push_back(row(o, many, o.ranks, o.threads));
    rows.back()["scaling"] =
        rows[1]["tokens_per_second"].get<double>() / (o.ranks * rows[0]["tokens_per_second"].get<double>());
  }
  for (auto& r : rows) r["peak_gflops_per_core"] = (o.precision == "bf16" ? peak.bf16 : peak.f32) * 1e-9;
  if (o.json) {
    fmt::print("{}\n", rows.dump(1));
    return 0;
  }
  fmt::print(
      "{} layers, {} wide, {} heads, sequence {}, vocabulary {}, micro-batch {}, {}, ZeRO-{}; peak {:.0f} GFLOP/s per "
      "core\n\n",
      o.layers, o.dim, o.heads, o.seq, o.vocab, o.micro_batch, o.precision, o.stage,
      rows[0]["peak_gflops_per_core"].get<double>());
  fmt::print("{:>5} {:>7} {:>10} {:>8} {:>8} {:>10} {:>9} {:>8}\n", "ranks", "threads", "median ms", "min", "max",
             "tokens/s", "of peak", "scaling");
  for (const auto& r : rows)
    fmt::print("{:>5} {:>7} {:>10.1f} {:>8.1f} {:>8.1f} {:>10.0f} {:>8.1f}% {:>8}\n", r["ranks"].get<int>(),
               r["threads"].get<int>(), r["median_ms"].get<double>(), r["min_ms"].get<double>(),
               r["max_ms"].get<double>(), r["tokens_per_second"].get<double>(), r["peak_ratio"].get<double>() * 100,
               r.contains("scaling") ? fmt::format("{:.1f}%", r["scaling"].get<double>() * 100) : "");
  return 0;
}

}  // namespace

int bench_trainer_main(int argc, char** argv) {
  return run_main([&] {
    Options o;
    Settings settings("bellows bench trainer", "times whole training steps against the matrix peak of the cores");
    settings.group("Model");
    settings.add("layers", &o.layers, "transformer blocks").at_least(1);
    settings.add("heads", &o.heads, "attention heads").at_least(1);
    settings.add("dim", &o.dim, "width").at_least(1);
    settings.add("seq", &o.seq, "tokens in a sequence").at_least(1);
    settings.add("vocab", &o.vocab, "vocabulary").at_least(2);
    settings.add("micro-batch", &o.micro_batch, "sequences computed at once").at_least(1);
    settings.add("precision", &o.precision, "of the computation").choices({"fp32", "bf16"});
    settings.group("Measurement");
    settings.add("ranks", &o.ranks, "above 1: also this world, and how it scales against one rank").at_least(1);
    settings.add("threads", &o.threads, "threads of each rank").at_least(1);
    settings.add("lanes", &o.lanes, "parts of a step; 0: as many as ranks").at_least(0);
    settings.add("stage", &o.stage, "ZeRO stage").range(0, 3);
    settings.add("steps", &o.steps, "steps that are timed in each run").at_least(3);
    settings.add("repeats", &o.repeats, "runs; one rank and several take turns").at_least(1);
    settings.add("json", &o.json, "print JSON");
    if (!settings.parse(argc, argv)) return 0;
    return measure_and_print(o);
  });
}

}  // namespace bellows

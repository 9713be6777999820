#include "metrics.h"

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bellows/base/error.h"

namespace bellows {
namespace {

// Keys stay in the order in which they are written: people read these files too.
using Json = nlohmann::ordered_json;

std::string bits(float value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", std::bit_cast<std::uint32_t>(value));
  return text;
}

// Dividing by a power of ten gives the double that prints shortest.
double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

}  // namespace

MetricsWriter::~MetricsWriter() {
  if (file_) std::fclose(file_);
}

void MetricsWriter::open(const std::string& path, bool fresh) {
  if (file_ || path.empty()) return;
  file_ = std::fopen(path.c_str(), fresh ? "w" : "a");
  if (!file_) throw UserError("cannot write metrics to '" + path + "': " + std::strerror(errno));
}

void MetricsWriter::line(const std::string& text) {
  if (!file_) return;
  std::fwrite((text + "\n").data(), 1, text.size() + 1, file_);
  std::fflush(file_);
}

void MetricsWriter::step(const StepRecord& record) {
  const StepResult& r = record.result;
  Json accounts;
  for (int a = 0; a < kAccounts; ++a)
    accounts[std::string(name_of(static_cast<Account>(a)))] = rounded(static_cast<double>(record.accounts[a]) * 1e-6, 1e4);
  Json json;
  json["step"] = r.step;
  json["loss"] = r.loss;
  json["loss_bits"] = bits(r.loss);
  json["grad_norm"] = r.grad_norm;
  json["clip"] = r.clip_coefficient;
  json["lr"] = r.learning_rate;
  json["tokens"] = r.tokens;
  json["step_ms"] = rounded(record.step_ms, 1e4);
  json["tokens_per_second"] = rounded(record.tokens_per_second, 10);
  json["mfu"] = record.mfu ? Json(rounded(*record.mfu, 1e6)) : Json(nullptr);
  json["world_size"] = record.world_size;
  json["generation"] = record.generation;
  if (r.skipped) json["skipped"] = true;
  json["accounts"] = std::move(accounts);
  line(json.dump());
}

void MetricsWriter::evaluation(std::int64_t step, float loss) {
  line(Json{{"event", "eval"}, {"step", step}, {"loss", loss}, {"loss_bits", bits(loss)}}.dump());
}

void MetricsWriter::world(const WorldChange& change) {
  line(Json{{"event", "world"}, {"step", change.step}, {"generation", change.generation}, {"from", change.from},
            {"to", change.to}, {"planned", change.planned}, {"reason", change.reason}, {"source", change.source},
            {"bytes_moved", change.bytes_moved}, {"bytes_minimum", change.bytes_minimum},
            {"ms", rounded(change.ms, 100)}}
           .dump());
}

void MetricsWriter::end(const TrainResult& result) {
  line(Json{{"event", "end"}, {"params_digest", result.digests.parameters}, {"optimizer_digest", result.digests.optimizer},
            {"steps", result.steps}, {"stopped", result.end == TrainResult::End::kStopped}}
           .dump());
}

}  // namespace bellows

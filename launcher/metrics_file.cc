#include "metrics_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bellows/base/error.h"

namespace bellows {
namespace {

using Json = nlohmann::ordered_json;  // accounts keep their order

// JSON has no word for what is not finite: it is written as null.
double number_or_nan(const Json& json) { return json.is_null() ? std::nan("") : json.get<double>(); }

/// Gathers lines; maps let the last of several lines on one step win.
struct Gathered {
  MetricsFile file;
  std::map<std::int64_t, MetricsFile::Step> steps;
  std::map<std::int64_t, double> evaluations;

  void event(const std::string& name, const Json& json) {
    if (name == "eval") {
      evaluations[json.at("step")] = number_or_nan(json.at("loss"));
    } else if (name == "world") {
      file.changes.push_back({json.at("step"), json.at("from"), json.at("to"), json.value("planned", true),
                              json.value("reason", std::string()), json.value("bytes_moved", 0.0),
                              json.value("ms", 0.0)});
    } else if (name == "end") {
      file.ended = true;
      file.parameters_digest = json.value("params_digest", std::string());
      file.optimizer_digest = json.value("optimizer_digest", std::string());
    }  // other events are of no use here
  }

  void step(const Json& json) {
    MetricsFile::Step s;
    s.step = json.at("step");
    s.loss = number_or_nan(json.at("loss"));
    s.tokens = json.value("tokens", std::int64_t{0});
    s.step_ms = json.value("step_ms", 0.0);
    s.world_size = json.value("world_size", 1);
    if (json.contains("mfu") && !json["mfu"].is_null()) s.mfu = json["mfu"].get<double>();
    file.repeated += steps.count(s.step) != 0;
    file.skipped += json.value("skipped", false);
    file.wall_ms += s.step_ms;
    file.tokens_with_repeats += static_cast<double>(s.tokens);
    if (json.contains("accounts"))
      for (const auto& [name, ms] : json["accounts"].items()) account(name) += ms.get<double>();
    steps[s.step] = s;
  }

  double& account(const std::string& name) {
    for (auto& [known, ms] : file.accounts_ms)
      if (known == name) return ms;
    return file.accounts_ms.emplace_back(name, 0.0).second;
  }
};

}  // namespace

MetricsFile MetricsFile::read(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw UserError("cannot read '" + path + "': " + std::strerror(errno));
  Gathered gathered;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string place = path + ":" + std::to_string(number);
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
      if (in.eof()) break;  // a running job is just writing it
      throw UserError(place + ": not a JSON object: '" + line.substr(0, 60) + (line.size() > 60 ? "...'" : "'"));
    }
    try {
      if (json.contains("event"))
        gathered.event(json["event"], json);
      else
        gathered.step(json);
    } catch (const nlohmann::json::exception& error) {
      throw UserError(place + ": not a line of a metrics file: " + error.what());
    }
  }
  if (gathered.steps.empty()) throw UserError("'" + path + "' holds no step");
  MetricsFile file = std::move(gathered.file);
  for (const auto& [number, step] : gathered.steps) file.steps.push_back(step);
  for (const auto& [number, loss] : gathered.evaluations) file.evaluations.push_back({number, loss});
  return file;
}

bool MetricsFile::has_mfu() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.mfu.has_value(); });
}

double MetricsFile::mean_mfu() const {
  double sum = 0, time = 0;
  for (const Step& s : steps)
    if (s.mfu) {
      sum += *s.mfu * s.step_ms;
      time += s.step_ms;
    }
  return time > 0 ? sum / time : 0;
}

double MetricsFile::final_loss(std::size_t count) const {
  count = std::min(count, steps.size());
  double sum = 0;
  for (std::size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return sum / static_cast<double>(count);
}

std::string duration_text(double ms) {
  char text[40];
  const auto seconds = static_cast<long long>(std::llround(ms / 1000));
  if (ms < 9950)
    std::snprintf(text, sizeof text, "%.1f s", ms / 1000);
  else if (seconds < 60)
    std::snprintf(text, sizeof text, "%lld s", seconds);
  else if (seconds < 3600)
    std::snprintf(text, sizeof text, "%lld min %02lld s", seconds / 60, seconds % 60);
  else
    std::snprintf(text, sizeof text, "%lld h %02lld min", seconds / 3600, seconds % 3600 / 60);
  return text;
}

std::string loss_text(double loss, int digits) {
  if (!std::isfinite(loss)) return "not finite";
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, loss);
  return text;
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3 + (number < 0); at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::vector<int> tenths_of_percent(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  std::vector<int> shares(values.size());
  if (!(sum > 0)) return shares;
  std::vector<std::pair<double, std::size_t>> remainders;
  int given = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = values[i] / sum * 1000;
    given += shares[i] = static_cast<int>(exact);
    remainders.push_back({exact - shares[i], i});
  }
  std::stable_sort(remainders.begin(), remainders.end(), [](auto& a, auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; given < 1000; ++i, ++given) ++shares[remainders[i % remainders.size()].second];
  return shares;
}

}  // namespace bellows

#include "checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bellows/base/digest.h"

namespace bellows {
namespace {

using Json = nlohmann::ordered_json;

std::string checksum(const std::string& text) { return hex64(xxh64(std::as_bytes(std::span(text)))); }

std::string fault_in(const Manifest& m) {
  std::vector<std::pair<Interval, int>> all;
  for (const Manifest::File& file : m.files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.')
      return "it names the file '" + file.name + "', which cannot be in its directory";
    for (const WrittenPiece& piece : file.pieces) {
      if (piece.kind < 0 || piece.kind >= static_cast<int>(m.meta.kinds.size())) return "a piece has an unknown kind";
      if (piece.range.begin > piece.range.end || piece.range.end > m.elements) return "a piece lies outside the model";
      if (piece.offset > file.bytes || piece.range.size() > (file.bytes - piece.offset) / sizeof(float))
        return "a piece lies outside its file '" + file.name + "'";
      all.push_back({piece.range, piece.kind});
    }
  }
  for (int kind = 0; kind < static_cast<int>(m.meta.kinds.size()); ++kind) {
    std::vector<Interval> ranges;
    for (const auto& [range, k] : all)
      if (k == kind && range.size() > 0) ranges.push_back(range);
    std::sort(ranges.begin(), ranges.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    std::size_t at = 0;
    for (const Interval& range : ranges) {
      if (range.begin != at)
        return "elements from " + std::to_string(std::min(at, range.begin)) + " of '" + m.meta.kinds[kind] + "' are " +
               (range.begin > at ? "missing" : "there twice");
      at = range.end;
    }
    if (at != m.elements) return "elements from " + std::to_string(at) + " of '" + m.meta.kinds[kind] + "' are missing";
  }
  return "";
}

}  // namespace

std::string Manifest::encode(const ParameterSet& parameters) const {
  Json json;
  json["format"] = "bellows-checkpoint";
  json["version"] = kVersion;
  json["step"] = meta.step;
  json["optimizer"] = meta.optimizer;
  json["kinds"] = meta.kinds;
  json["elements"] = elements;
  json["model_fingerprint"] = meta.model_fingerprint;
  json["job_fingerprint"] = meta.job_fingerprint;
  json["extra"] = meta.extra;
  json["parameters"] = Json::array();
  for (const Parameter& p : parameters.parameters())
    json["parameters"].push_back({{"name", p.name},
                                  {"shape", p.shape},
                                  {"unit", parameters.unit(p.unit).name},
                                  {"begin", parameters.unit(p.unit).begin + p.offset},
                                  {"frozen", p.options.frozen}});
  json["files"] = Json::array();
  for (const File& file : files) {
    Json pieces = Json::array();
    for (const WrittenPiece& piece : file.pieces)
      pieces.push_back({piece.kind, piece.range.begin, piece.range.end, piece.offset, hex64(piece.checksum)});
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"pieces", std::move(pieces)}});
  }
  const std::string sum = checksum(json.dump());
  json["checksum"] = sum;
  return json.dump(1) + "\n";
}

Result<Manifest> Manifest::decode(const std::string& text) {
  const auto failure = [](const std::string& what) { return Result<Manifest>::failure(what); };
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return failure("it is not JSON");
  try {
    if (json.value("format", "") != "bellows-checkpoint") return failure("it is not a checkpoint's manifest");
    if (json.at("version").get<int>() != kVersion)
      return failure("it has format version " + json.at("version").dump() + ", this program reads " +
                     std::to_string(kVersion));
    const std::string stored = json.at("checksum").get<std::string>();
    json.erase("checksum");
    if (checksum(json.dump()) != stored) return failure("its checksum does not fit its content");
    Manifest m;
    m.meta.step = json.at("step").get<std::int64_t>();
    m.meta.optimizer = json.at("optimizer").get<std::string>();
    m.meta.kinds = json.at("kinds").get<std::vector<std::string>>();
    m.meta.model_fingerprint = json.at("model_fingerprint").get<std::string>();
    m.meta.job_fingerprint = json.at("job_fingerprint").get<std::string>();
    m.meta.extra = json.at("extra").get<std::string>();
    m.elements = json.at("elements").get<std::size_t>();
    for (const Json& file : json.at("files")) {
      File f;
      f.name = file.at("name").get<std::string>();
      f.bytes = file.at("bytes").get<std::uint64_t>();
      for (const Json& piece : file.at("pieces"))
        f.pieces.push_back({piece.at(0).get<int>(),
                            {piece.at(1).get<std::size_t>(), piece.at(2).get<std::size_t>()},
                            piece.at(3).get<std::uint64_t>(),
                            std::stoull(piece.at(4).get<std::string>(), nullptr, 16)});
      m.files.push_back(std::move(f));
    }
    if (const std::string fault = fault_in(m); !fault.empty()) return failure(fault);
    return m;
  } catch (const std::exception& error) {
    return failure(std::string("it lacks something: ") + error.what());
  }
}

}  // namespace bellows

#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "bellows/base/digest.h"

namespace bellows {
namespace {

using Json = nlohmann::ordered_json;

std::string checksum(const std::string& text) { return hex64(xxh64(std::as_bytes(std::span(text)))); }

std::uint64_t parse_hex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) throw UserError("'" + text + "' is not a checksum");
  return value;
}

// nlohmann would turn -1 and 1e30 into some unsigned number without a word.
std::uint64_t unsigned_number(const Json& json) {
  if (!json.is_number_unsigned()) throw UserError(json.dump() + " is not a count");
  return json.get<std::uint64_t>();
}

Json file_to_json(const Manifest::File& file) {
  Json pieces = Json::array();
  for (const WrittenPiece& piece : file.shard.pieces) {
    Json sums = Json::array();
    for (const std::uint64_t sum : piece.checksums) sums.push_back(hex64(sum));
    pieces.push_back({{"kind", piece.kind},
                      {"begin", piece.range.begin},
                      {"end", piece.range.end},
                      {"offset", piece.offset},
                      {"xxh64", std::move(sums)}});
  }
  return {{"name", file.name},
          {"bytes", file.shard.bytes},
          {"header_bytes", file.shard.header_bytes},
          {"header_xxh64", hex64(file.shard.header_checksum)},
          {"pieces", std::move(pieces)}};
}

Manifest::File file_from_json(const Json& json) {
  Manifest::File file;
  file.name = json.at("name").get<std::string>();
  file.shard.bytes = unsigned_number(json.at("bytes"));
  file.shard.header_bytes = unsigned_number(json.at("header_bytes"));
  file.shard.header_checksum = parse_hex(json.at("header_xxh64").get<std::string>());
  for (const Json& p : json.at("pieces")) {
    WrittenPiece piece;
    piece.kind = p.at("kind").get<int>();
    piece.range = {unsigned_number(p.at("begin")), unsigned_number(p.at("end"))};
    piece.offset = unsigned_number(p.at("offset"));
    for (const Json& sum : p.at("xxh64")) piece.checksums.push_back(parse_hex(sum.get<std::string>()));
    file.shard.pieces.push_back(std::move(piece));
  }
  return file;
}

Json group_to_json(const ParameterGroup& group) {
  Json json = {{"name", group.name}, {"learning_rate_scale", group.learning_rate_scale}};
  if (group.weight_decay) json["weight_decay"] = *group.weight_decay;
  if (group.frozen_from_step) json["frozen_from_step"] = *group.frozen_from_step;
  return json;
}

ParameterGroup group_from_json(const Json& json) {
  ParameterGroup group;
  group.name = json.at("name").get<std::string>();
  group.learning_rate_scale = json.at("learning_rate_scale").get<double>();
  if (json.contains("weight_decay")) group.weight_decay = json["weight_decay"].get<double>();
  if (json.contains("frozen_from_step")) group.frozen_from_step = json["frozen_from_step"].get<std::int64_t>();
  return group;
}

std::string fault_in_file(const Manifest::File& file, const Manifest& m) {
  const std::string in_file = " in '" + file.name + "'";
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.')
    return "it names the file '" + file.name + "', which cannot be in its directory";
  std::uint64_t at = file.shard.header_bytes;
  for (const WrittenPiece& piece : file.shard.pieces) {
    if (piece.kind < 0 || piece.kind >= static_cast<int>(m.meta.kinds.size()))
      return "a piece" + in_file + " has an unknown kind";
    if (piece.range.begin >= piece.range.end || piece.range.end > m.elements)
      return "a piece" + in_file + " lies outside the model";
    if (piece.offset != at || at > file.shard.bytes || piece.range.size() > (file.shard.bytes - at) / sizeof(float))
      return "the pieces" + in_file + " do not follow one another";
    if (piece.checksums.size() != piece.blocks()) return "a piece" + in_file + " has not as many checksums as blocks";
    at += piece.range.size() * sizeof(float);
  }
  return at == file.shard.bytes ? "" : "the pieces" + in_file + " do not fill it";
}

std::string fault_in(const Manifest& m) {
  std::vector<std::vector<Interval>> covered(m.meta.kinds.size());
  for (const Manifest::File& file : m.files) {
    if (std::string fault = fault_in_file(file, m); !fault.empty()) return fault;
    for (const WrittenPiece& piece : file.shard.pieces) covered[piece.kind].push_back(piece.range);
  }
  for (std::size_t kind = 0; kind < covered.size(); ++kind) {
    std::vector<Interval>& ranges = covered[kind];
    std::sort(ranges.begin(), ranges.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    const std::string of_kind = " of '" + m.meta.kinds[kind] + "' are ";
    std::size_t at = 0;
    for (const Interval& range : ranges) {
      if (range.begin != at)
        return "elements from " + std::to_string(std::min(at, range.begin)) + of_kind +
               (range.begin > at ? "missing" : "there twice");
      at = range.end;
    }
    if (at != m.elements) return "elements from " + std::to_string(at) + of_kind + "missing";
  }
  return "";
}

}  // namespace

std::string Manifest::encode_file(const File& file) { return file_to_json(file).dump(); }
Manifest::File Manifest::decode_file(const std::string& text) { return file_from_json(Json::parse(text)); }

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
  if (!meta.groups.empty()) {
    json["groups"] = Json::array();
    for (const ParameterGroup& group : meta.groups) json["groups"].push_back(group_to_json(group));
  }
  json["parameters"] = Json::array();
  for (const Parameter& p : parameters.parameters()) {
    Json entry = {{"name", p.name},
                  {"shape", p.shape},
                  {"unit", parameters.unit(p.unit).name},
                  {"begin", parameters.unit(p.unit).begin + p.offset},
                  {"frozen", p.options.frozen}};
    if (const auto group = meta.group_of.find(p.name); group != meta.group_of.end()) entry["group"] = group->second;
    if (p.options.dtype) entry["dtype"] = name_of(*p.options.dtype);
    json["parameters"].push_back(std::move(entry));
  }
  json["files"] = Json::array();
  for (const File& file : files) json["files"].push_back(file_to_json(file));
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
    if (json.at("version") != kVersion)
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
    m.elements = unsigned_number(json.at("elements"));
    if (json.contains("groups"))
      for (const Json& group : json["groups"]) m.meta.groups.push_back(group_from_json(group));
    for (const Json& p : json.at("parameters"))
      if (p.contains("group")) m.meta.group_of[p.at("name").get<std::string>()] = p["group"].get<std::string>();
    for (const Json& file : json.at("files")) m.files.push_back(file_from_json(file));
    if (const std::string fault = fault_in(m); !fault.empty()) return failure(fault);
    return m;
  } catch (const std::exception& error) {
    return failure(std::string("its content is not what it should be: ") + error.what());
  }
}

}  // namespace bellows

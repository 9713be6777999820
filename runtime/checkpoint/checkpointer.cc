// A save is collective: every rank writes its shard into a hidden directory, rank 0 adds the manifest, and one rename
// publishes all of it. Whatever goes wrong before the rename leaves nothing but a hidden directory, which is removed now or,
// after a kill, by the next save.

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/base/digest.h"
#include "bellows/base/log.h"
#include "bellows/runtime/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_directory.h"

namespace fs = std::filesystem;

namespace bellows {
namespace {

using Json = nlohmann::json;

std::string encode(const std::string& name, const WrittenShard& shard) {
  Json json;
  json["name"] = name;
  json["bytes"] = shard.file_bytes;
  json["pieces"] = Json::array();
  for (const WrittenPiece& p : shard.pieces)
    json["pieces"].push_back({p.kind, p.range.begin, p.range.end, p.offset, p.checksum});
  return json.dump();
}

Manifest::File decode(const std::string& text) {
  const Json json = Json::parse(text);
  Manifest::File file;
  file.name = json.at("name");
  file.bytes = json.at("bytes");
  for (const Json& p : json.at("pieces")) file.pieces.push_back({p[0], {p[1], p[2]}, p[3], p[4]});
  return file;
}

void write_manifest(const std::string& path, const std::string& text) {
  OutputFile file(path, text.size());
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// Runs a part of the save on one rank and agrees with the others on how it went: the first reason, or empty.
template <class Part>
std::string agree(Communicator& comm, const char* what, std::string* mine, const Part& part) {
  std::string error;
  try {
    part();
  } catch (const UserError& failure) {
    error = failure.what();
  } catch (const fs::filesystem_error& failure) {
    error = failure.what();
  }
  std::string first;
  const std::string blob = error.empty() ? "+" + *mine : "!rank " + std::to_string(comm.world().rank) + ": " + error;
  std::string all;
  for (const std::string& text : comm.all_gather_blobs(blob, what)) {
    if (text[0] == '!' && first.empty()) first = text.substr(1);
    all += text.substr(1) + "\n";
  }
  *mine = all;
  return first;
}

}  // namespace

Checkpointer::Checkpointer(std::string directory, int keep) : directory_(std::move(directory)), keep_(std::max(keep, 1)) {}

Result<std::string> Checkpointer::save(Communicator& comm, const CheckpointMeta& meta, const ParameterSet& parameters,
                                       const std::vector<CheckpointPiece>& pieces) {
  const World& world = comm.world();
  const fs::path final_path = fs::path(directory_) / step_directory_name(meta.step);
  const fs::path hidden = fs::path(directory_) / ("." + step_directory_name(meta.step) + ".partial");

  std::string nothing;
  std::string error = agree(comm, "checkpoint: preparing", &nothing, [&] {
    if (world.rank != 0) return;
    fs::create_directories(directory_);
    for (const auto& entry : fs::directory_iterator(directory_))   // what killed saves left behind
      if (is_partial_name(entry.path().filename().string())) remove_quietly(entry.path());
    fs::create_directory(hidden);
  });

  std::string files;
  if (error.empty()) {
    const std::string name =
        "shard-" + std::to_string(world.rank) + "-of-" + std::to_string(world.world_size) + ".safetensors";
    std::string mine;
    error = agree(comm, "checkpoint: writing shards", &mine, [&] {
      mine = encode(name, write_shard((hidden / name).string(), meta.kinds, pieces));
    });
    files = mine;
  }
  if (error.empty()) {
    error = agree(comm, "checkpoint: publishing", &nothing, [&] {
      if (world.rank != 0) return;
      Manifest manifest;
      manifest.meta = meta;
      manifest.elements = parameters.total();
      for (std::size_t at = 0; at < files.size();) {
        const std::size_t end = files.find('\n', at);
        manifest.files.push_back(decode(files.substr(at, end - at)));
        at = end + 1;
      }
      const std::string text = manifest.encode(parameters);
      if (auto check = Manifest::decode(text); !check) throw UserError("checkpoint is incomplete: " + check.error());
      write_manifest((hidden / "manifest.json").string(), text);
      sync_directory(hidden.string());
      // A step that is saved again (after a rollback) replaces the earlier one, which stays whole until the rename.
      const fs::path old = fs::path(directory_) / ("." + step_directory_name(meta.step) + ".old.partial");
      if (fs::exists(final_path)) fs::rename(final_path, old);
      fs::rename(hidden, final_path);
      sync_directory(directory_);
      remove_quietly(old);
    });
  }
  if (!error.empty()) {
    if (world.rank == 0) remove_quietly(hidden);
    return Result<std::string>::failure(error);
  }
  if (world.rank == 0) {
    const std::vector<std::string> complete = step_directories(directory_);   // newest first
    for (std::size_t i = static_cast<std::size_t>(keep_); i < complete.size(); ++i) remove_quietly(complete[i]);
  }
  return final_path.string();
}

}  // namespace bellows

// A save is collective: every rank writes its shard into a hidden directory, rank 0 adds the manifest, and one rename
// publishes all of it. Whatever goes wrong before the rename leaves nothing but a hidden directory, which is removed
// now or, after a kill, by the next save. Its name holds the generation, so a rank that was left behind by a change of
// the world cannot write into a newer save.

#include <algorithm>
#include <filesystem>

#include "bellows/base/log.h"
#include "bellows/runtime/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_directory.h"

namespace fs = std::filesystem;

namespace bellows {
namespace {

/// What all ranks know after a part of the save: each rank's text, or the first rank's reason why it failed.
struct Agreement {
  std::vector<std::string> texts;
  std::string error;
};

// Runs `part` here and tells everybody how it went. Only CommError gets through.
template <class Part>
Agreement agree(Communicator& comm, const char* what, const Part& part) {
  std::string mine;
  try {
    mine = "+" + part();
  } catch (const std::exception& failure) {
    mine = "!rank " + std::to_string(comm.world().rank) + ": " + failure.what();
  }
  Agreement all;
  for (const std::string& text : comm.all_gather_blobs(mine, what)) {
    if (text.front() == '!' && all.error.empty()) all.error = text.substr(1);
    all.texts.push_back(text.substr(1));
  }
  return all;
}

void write_text(const std::string& path, const std::string& text) {
  OutputFile file(path, text.size());
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

void make_durable_directory(const fs::path& path) {
  if (path.empty() || fs::is_directory(path)) return;
  if (fs::exists(path)) throw UserError("'" + path.string() + "' is not a directory");
  make_durable_directory(path.parent_path());
  std::error_code error;
  fs::create_directory(path, error);
  if (error) throw UserError("cannot create the directory '" + path.string() + "': " + error.message());
  sync_directory(path.has_parent_path() ? path.parent_path().string() : ".");
}

Manifest manifest_of(const CheckpointMeta& meta, const ParameterSet& parameters,
                     const std::vector<std::string>& files) {
  Manifest manifest;
  manifest.meta = meta;
  manifest.elements = parameters.total();
  for (const std::string& file : files) manifest.files.push_back(Manifest::decode_file(file));
  return manifest;
}

// Keeps the newest `keep` that can be opened, and `published` whatever its number. A damaged one counts for nothing,
// so it never pushes out a sound one.
void remove_old(const std::string& directory, const std::string& published, int keep) {
  const auto paths = step_directories(directory);
  if (!paths) return log::warn("old checkpoints stay: {}", paths.error());
  int sound = 0;
  for (const std::string& path : paths.value()) {
    if (path == published)
      ++sound;
    else if (sound < keep)
      sound += CheckpointReader::open(path).ok();
    else
      remove_published(path);
  }
}

}  // namespace

Checkpointer::Checkpointer(std::string directory, int keep)
    : directory_(std::move(directory)), keep_(std::max(keep, 1)) {
  while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
}

Result<std::string> Checkpointer::save(Communicator& comm, const CheckpointMeta& meta, const ParameterSet& parameters,
                                       const std::vector<CheckpointPiece>& pieces) {
  const World& world = comm.world();
  const std::string final_path = (fs::path(directory_) / step_directory_name(meta.step)).string();
  const std::string partial = (fs::path(directory_) / partial_name(meta.step, world.generation)).string();
  const auto clean = [&] {
    std::error_code ignored;
    if (world.rank == 0) fs::remove_all(partial, ignored);
  };
  const auto on_rank_0 = [&](const auto& part) {
    return [&]() -> std::string {
      if (world.rank == 0) part();
      return "";
    };
  };

  Agreement all;
  try {
    all = agree(comm, "checkpoint: preparing", on_rank_0([&] {
                  make_durable_directory(directory_);
                  remove_partials(directory_);
                  std::error_code error;
                  fs::create_directory(partial, error);
                  if (error) throw UserError("cannot create the directory '" + partial + "': " + error.message());
                }));
    if (all.error.empty())
      all = agree(comm, "checkpoint: writing shards", [&] {
        std::error_code ignored;
        if (!fs::is_directory(partial, ignored))
          throw UserError("'" + partial +
                          "', made by rank 0, is not there on this host: checkpoints need a directory "
                          "that all hosts share");
        const std::string name =
            "shard-" + std::to_string(world.rank) + "-of-" + std::to_string(world.world_size) + ".safetensors";
        return Manifest::encode_file({name, write_shard((fs::path(partial) / name).string(), meta.kinds, pieces)});
      });
    if (all.error.empty())
      all = agree(comm, "checkpoint: publishing", on_rank_0([&] {
                    const std::string text = manifest_of(meta, parameters, all.texts).encode(parameters);
                    if (const auto check = Manifest::decode(text); !check)
                      throw UserError("the pieces that were saved make no checkpoint: " + check.error());
                    write_text((fs::path(partial) / "manifest.json").string(), text);
                    publish(directory_, partial, meta.step);
                  }));
  } catch (const CommError&) {
    clean();
    throw;
  }
  if (!all.error.empty()) {
    clean();
    return Result<std::string>::failure(all.error);
  }
  if (world.rank == 0) remove_old(directory_, final_path, keep_);
  return final_path;
}

}  // namespace bellows

#pragma once
#include <string>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/runtime/checkpoint.h"
#include "checkpoint/shard_file.h"

namespace bellows {

/// What stands in manifest.json: the meta data, every piece of every shard with its checksums, and a checksum over all
/// of it, so that a flipped byte anywhere is noticed. docs/checkpoint-format.md has the grammar.
struct Manifest {
  static constexpr int kVersion = 1;
  /// A shard and its name within the checkpoint's directory: no slash.
  struct File {
    std::string name;
    WrittenShard shard;
  };
  CheckpointMeta meta;
  std::size_t elements = 0;  ///< of the model
  std::vector<File> files;

  std::string encode(const ParameterSet& parameters) const;
  /// Fails with what is wrong (without the path). Checks that names stay in the directory, that pieces fill their files
  /// without holes and that every kind is covered exactly once: whatever a file says, reading it cannot go astray.
  static Result<Manifest> decode(const std::string& text);

  /// One file's entry alone: how a rank tells the others what it wrote.
  static std::string encode_file(const File& file);
  static File decode_file(const std::string& text);
};

}  // namespace bellows

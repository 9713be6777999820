#pragma once
#include <string>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/runtime/checkpoint.h"
#include "checkpoint/shard_file.h"

namespace bellows {

/// What stands in manifest.json: the meta data, every piece of every shard, and a checksum over all of it, so that a
/// flipped byte anywhere is noticed.
struct Manifest {
  static constexpr int kVersion = 1;
  struct File {
    std::string name;              ///< within the checkpoint's directory: no slash
    std::uint64_t bytes = 0;
    std::vector<WrittenPiece> pieces;
  };
  CheckpointMeta meta;
  std::size_t elements = 0;        ///< of the model
  std::vector<File> files;

  std::string encode(const ParameterSet& parameters) const;
  /// Fails with what is wrong (without the path). Checks that names stay in the directory, that pieces lie inside their
  /// files and that every kind is covered exactly once: whatever a file says, reading it cannot go astray.
  static Result<Manifest> decode(const std::string& text);
};

}  // namespace bellows

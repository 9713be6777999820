#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"
#include "bellows/runtime/parameter_set.h"

namespace bellows {

class InputFile;

/// What a checkpoint says about itself, the same on every rank.
struct CheckpointMeta {
  std::int64_t step = 0;           ///< committed steps
  std::string model_fingerprint;   ///< ParameterSet::fingerprint()
  std::string job_fingerprint;     ///< data, seed, batch, lanes, optimizer: what changes the numbers of later steps
  std::string optimizer;           ///< Optimizer::name()
  std::vector<std::string> kinds;  ///< sharded float32 arrays: "master", then the optimizer's states
  std::string extra;               ///< JSON text of the writer's own (data position, sampler, ...)
  std::vector<ParameterGroup> groups = {};           ///< in the writer's order, which means nothing
  std::map<std::string, std::string> group_of = {};  ///< by parameter, those that are in one
};

/// A run of elements that this rank writes: elements `range` of the model's index space of one kind.
struct CheckpointPiece {
  int kind = 0;
  Interval range;
  std::span<const float> data;
};

/// Sharded checkpoints: a directory DIR/step-00000042 per step, shard files in safetensors layout holding canonical
/// intervals, a manifest with parameter table, intervals and checksums, published by fsync and one rename.
/// World-independent: pieces are canonical intervals, so any world reads what it needs.
class Checkpointer {
 public:
  /// `keep`: newest complete checkpoints that are kept (at least 1).
  Checkpointer(std::string directory, int keep);

  /// Collective. Every element of every kind must be in exactly one rank's pieces. All ranks agree on success; on
  /// failure (disk full, permission) nothing of the new one stays, older checkpoints are intact, and every rank gets
  /// the same reason, naming path and bytes. Returns the published path.
  Result<std::string> save(Communicator& comm, const CheckpointMeta& meta, const ParameterSet& parameters,
                           const std::vector<CheckpointPiece>& pieces);
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  int keep_;
};

/// One complete checkpoint, opened for reading. Any rank, no communication.
class CheckpointReader {
 public:
  /// `path` is one step's directory. Fails naming the file for a missing, torn or foreign checkpoint.
  static Result<CheckpointReader> open(const std::string& path);
  /// The newest complete and verified checkpoint in `directory`; incomplete or damaged ones are skipped with a warning
  /// that names the file. Fails with the reason if there is none.
  static Result<CheckpointReader> newest(const std::string& directory);

  const CheckpointMeta& meta() const { return meta_; }
  const std::string& path() const { return path_; }
  /// Fills `out` (range.size() floats) from the shards that hold `range` of `kind`. Whatever is handed out has been
  /// held against its checksum; at the edges of `range` that means reading the rest of a checksummed block too.
  Result<std::monostate> read(int kind, Interval range, std::span<float> out) const;
  /// Checks every file against the manifest.
  Result<std::monostate> verify() const;

 private:
  /// A run of elements under one checksum.
  struct Block {
    int file = 0;  ///< in files_
    int kind = 0;
    Interval range;
    std::uint64_t offset = 0;    ///< byte offset of the first element in the file
    std::uint64_t checksum = 0;  ///< xxh64 of the run's bytes
  };
  /// Reads a whole block into `out` and holds it against its checksum.
  std::string read_block(const InputFile& file, const Block& block, std::span<float> out) const;

  CheckpointMeta meta_;
  std::string path_;
  std::vector<std::string> files_;
  std::vector<Block> blocks_;  ///< by (kind, range.begin), without holes
};

}  // namespace bellows

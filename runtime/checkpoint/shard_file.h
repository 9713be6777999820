#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/runtime/checkpoint.h"

namespace bellows {

// A shard file is a safetensors file, so that any reader of that format opens it:
//
//   file    = header_size header data
//   header_size = 8 bytes, little-endian: bytes of header
//   header  = JSON, padded with spaces to a multiple of 8: {"KIND/BEGIN-END": {"dtype": "F32", "shape": [END-BEGIN],
//             "data_offsets": [FROM, TO]}, ...}; offsets are relative to data, without holes, in order of the file
//   data    = the elements, little-endian float32
//
// KIND is "master" or an optimizer state's name, [BEGIN, END) an interval of the model's canonical index space.

/// Where a piece stands in a written file, for the manifest.
struct WrittenPiece {
  int kind = 0;
  Interval range;
  std::uint64_t offset = 0;
  std::uint64_t checksum = 0;   ///< xxh64
};
struct WrittenShard {
  std::uint64_t file_bytes = 0;
  std::vector<WrittenPiece> pieces;
};
/// Writes and syncs a shard. Throws UserError naming path and bytes.
WrittenShard write_shard(const std::string& path, const std::vector<std::string>& kinds,
                         const std::vector<CheckpointPiece>& pieces);

}  // namespace bellows

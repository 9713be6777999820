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

/// Elements under one checksum: small enough that reading a few elements of a large run stays cheap.
constexpr std::size_t kChecksumElements = std::size_t{1} << 18;

/// Where a piece stands in a written file, for the manifest.
struct WrittenPiece {
  int kind = 0;
  Interval range;
  std::uint64_t offset = 0;              ///< in the file
  std::vector<std::uint64_t> checksums;  ///< xxh64 of every kChecksumElements elements, the last block may be shorter

  std::size_t blocks() const { return (range.size() + kChecksumElements - 1) / kChecksumElements; }
  /// Elements of block `i`.
  Interval block(std::size_t i) const {
    const std::size_t begin = range.begin + i * kChecksumElements;
    return {begin, range.end - begin < kChecksumElements ? range.end : begin + kChecksumElements};
  }
};
struct WrittenShard {
  std::uint64_t bytes = 0;            ///< of the file
  std::uint64_t header_bytes = 0;     ///< everything before the data, the size field included
  std::uint64_t header_checksum = 0;  ///< xxh64
  std::vector<WrittenPiece> pieces;   ///< in order of the file; those without elements are left out
};
/// Writes and syncs a shard. Throws UserError naming path and bytes.
WrittenShard write_shard(const std::string& path, const std::vector<std::string>& kinds,
                         const std::vector<CheckpointPiece>& pieces);

}  // namespace bellows

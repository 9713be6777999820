#include "checkpoint/shard_file.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bellows/base/digest.h"
#include "checkpoint/files.h"

namespace bellows {

static_assert(std::endian::native == std::endian::little, "shard files are little-endian");

WrittenShard write_shard(const std::string& path, const std::vector<std::string>& kinds,
                         const std::vector<CheckpointPiece>& pieces) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  WrittenShard shard;
  std::uint64_t at = 0;
  for (const CheckpointPiece& piece : pieces) {
    BELLOWS_CHECK_EQ(piece.range.size(), piece.data.size());
    const std::uint64_t bytes = piece.data.size_bytes();
    header[kinds[piece.kind] + "/" + std::to_string(piece.range.begin) + "-" + std::to_string(piece.range.end)] = {
        {"dtype", "F32"}, {"shape", {piece.range.size()}}, {"data_offsets", {at, at + bytes}}};
    shard.pieces.push_back({piece.kind, piece.range, at, xxh64(std::as_bytes(piece.data))});
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  shard.file_bytes = 8 + size + at;
  for (WrittenPiece& piece : shard.pieces) piece.offset += 8 + size;

  OutputFile file(path, shard.file_bytes);
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(std::as_bytes(std::span(text)));
  for (const CheckpointPiece& piece : pieces) file.write(std::as_bytes(piece.data));
  file.finish();
  return shard;
}

}  // namespace bellows

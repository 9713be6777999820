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
    BELLOWS_CHECK(piece.kind >= 0 && piece.kind < static_cast<int>(kinds.size()));
    if (piece.data.empty()) continue;
    const std::uint64_t bytes = piece.data.size_bytes();
    header[kinds[piece.kind] + "/" + std::to_string(piece.range.begin) + "-" + std::to_string(piece.range.end)] = {
        {"dtype", "F32"}, {"shape", {piece.range.size()}}, {"data_offsets", {at, at + bytes}}};
    WrittenPiece written{piece.kind, piece.range, at, {}};
    for (std::size_t i = 0; i < written.blocks(); ++i) {
      const Interval block = written.block(i);
      written.checksums.push_back(
          xxh64(std::as_bytes(piece.data.subspan(block.begin - piece.range.begin, block.size()))));
    }
    shard.pieces.push_back(std::move(written));
    at += bytes;
  }
  std::string json = header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = json.size();
  std::string head(sizeof size, '\0');
  std::memcpy(head.data(), &size, sizeof size);
  head += json;
  shard.header_bytes = head.size();
  shard.header_checksum = xxh64(std::as_bytes(std::span(head)));
  shard.bytes = head.size() + at;
  for (WrittenPiece& piece : shard.pieces) piece.offset += head.size();

  OutputFile file(path, shard.bytes);
  file.write(std::as_bytes(std::span(head)));
  for (const CheckpointPiece& piece : pieces) file.write(std::as_bytes(piece.data));
  file.finish();
  return shard;
}

}  // namespace bellows

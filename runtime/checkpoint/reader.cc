#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>

#include "bellows/base/digest.h"
#include "bellows/base/log.h"
#include "bellows/runtime/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_directory.h"

namespace fs = std::filesystem;

namespace bellows {
namespace {

constexpr std::size_t kLargestManifest = std::size_t{256} << 20;
constexpr std::size_t kLargestHeader = std::size_t{100} << 20;  // as other readers of safetensors have it

// A path without a manifest can be many things; say which.
std::string why_no_manifest(const std::string& path, const std::string& read_error) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return "'" + path + "' does not exist";
  if (error && status.type() == fs::file_type::none) return "cannot look at '" + path + "': " + error.message();
  if (status.type() != fs::file_type::directory) return "'" + path + "' is not a directory";
  const auto steps = step_directories(path);
  if (!steps) return steps.error();
  if (!steps.value().empty())
    return "'" + path + "' is a directory of checkpoints, not one of them; the newest in it is '" +
           steps.value().front() + "'";
  return "no complete checkpoint in '" + path + "': " + read_error;
}

// What is wrong with a shard's size or its header, or nothing.
std::string fault_in_head(const std::string& path, const WrittenShard& expected) {
  const auto file = InputFile::open(path);
  if (!file) return file.error();
  if (file.value().size() != expected.bytes)
    return "'" + path + "' has " + std::to_string(file.value().size()) + " bytes instead of " +
           std::to_string(expected.bytes);
  if (expected.header_bytes > kLargestHeader)
    return "'" + path + "' should have a header of " + std::to_string(expected.header_bytes) +
           " bytes, more than the " + std::to_string(kLargestHeader) + " that it can have";
  std::string head(expected.header_bytes, '\0');
  if (std::string error = file.value().read(0, std::as_writable_bytes(std::span(head))); !error.empty()) return error;
  if (xxh64(std::as_bytes(std::span(head))) != expected.header_checksum)
    return "'" + path + "' is damaged: its header does not fit its checksum";
  return "";
}

}  // namespace

Result<CheckpointReader> CheckpointReader::open(const std::string& path) {
  const auto failure = [](const std::string& what) { return Result<CheckpointReader>::failure(what); };
  const std::string manifest_path = (fs::path(path) / "manifest.json").string();
  const auto text = read_file(manifest_path, kLargestManifest);
  if (!text) return failure(why_no_manifest(path, text.error()));
  const auto decoded = Manifest::decode(text.value());
  if (!decoded) return failure("'" + manifest_path + "' cannot be used: " + decoded.error());
  const Manifest& manifest = decoded.value();

  CheckpointReader reader;
  reader.path_ = path;
  reader.meta_ = manifest.meta;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const WrittenShard& shard = manifest.files[f].shard;
    reader.files_.push_back((fs::path(path) / manifest.files[f].name).string());
    if (const std::string fault = fault_in_head(reader.files_.back(), shard); !fault.empty()) return failure(fault);
    for (const WrittenPiece& piece : shard.pieces)
      for (std::size_t i = 0; i < piece.blocks(); ++i)
        reader.blocks_.push_back({static_cast<int>(f), piece.kind, piece.block(i),
                                  piece.offset + i * kChecksumElements * sizeof(float), piece.checksums[i]});
  }
  std::sort(reader.blocks_.begin(), reader.blocks_.end(), [](const Block& a, const Block& b) {
    return std::tie(a.kind, a.range.begin) < std::tie(b.kind, b.range.begin);
  });
  return reader;
}

Result<CheckpointReader> CheckpointReader::newest(const std::string& directory) {
  const auto paths = step_directories(directory);
  if (!paths) return Result<CheckpointReader>::failure(paths.error());
  std::string first_fault;
  for (const std::string& path : paths.value()) {
    auto reader = open(path);
    std::string fault;
    if (!reader) {
      fault = reader.error();
    } else if (const auto verified = reader.value().verify(); !verified) {
      fault = verified.error();
    } else {
      return reader;
    }
    log::warn("checkpoint '{}' is not used: {}", path, fault);
    if (first_fault.empty()) first_fault = fault;
  }
  return Result<CheckpointReader>::failure("'" + directory + "' holds no complete checkpoint" +
                                           (first_fault.empty() ? "" : ": " + first_fault));
}

std::string CheckpointReader::read_block(const InputFile& file, const Block& block, std::span<float> out) const {
  if (std::string error = file.read(block.offset, std::as_writable_bytes(out)); !error.empty()) return error;
  if (xxh64(std::as_bytes(out)) == block.checksum) return "";
  return "'" + files_[block.file] + "' is damaged: elements " + std::to_string(block.range.begin) + "-" +
         std::to_string(block.range.end) + " of '" + meta_.kinds[block.kind] + "' do not fit their checksum";
}

Result<std::monostate> CheckpointReader::read(int kind, Interval range, std::span<float> out) const {
  const auto failure = [](const std::string& what) { return Result<std::monostate>::failure(what); };
  BELLOWS_CHECK_EQ(out.size(), range.size());
  if (kind < 0 || kind >= static_cast<int>(meta_.kinds.size()))
    return failure("'" + path_ + "' has no array number " + std::to_string(kind));
  std::optional<InputFile> file;
  int file_index = -1;
  std::vector<float> whole;  // of a block that is wanted only in part
  auto block = std::partition_point(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return b.kind < kind || (b.kind == kind && b.range.end <= range.begin);
  });
  std::size_t at = range.begin;
  for (; at < range.end; ++block) {
    if (block == blocks_.end() || block->kind != kind)
      return failure("'" + path_ + "' has no elements from " + std::to_string(at) + " of '" + meta_.kinds[kind] + "'");
    if (block->file != file_index) {
      auto opened = InputFile::open(files_[block->file]);
      if (!opened) return failure(opened.error());
      file.emplace(std::move(opened.value()));
      file_index = block->file;
    }
    const Interval part{at, std::min(range.end, block->range.end)};
    const auto target = out.subspan(part.begin - range.begin, part.size());
    const bool all_of_it = part == block->range;
    if (!all_of_it) whole.resize(block->range.size());
    const std::string error = read_block(*file, *block, all_of_it ? target : std::span(whole));
    if (!error.empty()) return failure(error);
    if (!all_of_it) std::copy_n(whole.begin() + (part.begin - block->range.begin), part.size(), target.begin());
    at = part.end;
  }
  return std::monostate{};
}

Result<std::monostate> CheckpointReader::verify() const {
  std::optional<InputFile> file;
  int file_index = -1;
  std::vector<float> buffer;
  for (const Block& block : blocks_) {
    if (block.file != file_index) {
      auto opened = InputFile::open(files_[block.file]);
      if (!opened) return Result<std::monostate>::failure(opened.error());
      file.emplace(std::move(opened.value()));
      file_index = block.file;
    }
    buffer.resize(block.range.size());
    const std::string error = read_block(*file, block, buffer);
    if (!error.empty()) return Result<std::monostate>::failure(error);
  }
  return std::monostate{};
}

}  // namespace bellows

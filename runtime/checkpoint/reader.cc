#include <algorithm>
#include <filesystem>

#include "bellows/base/digest.h"
#include "bellows/base/log.h"
#include "bellows/runtime/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_directory.h"

namespace fs = std::filesystem;

namespace bellows {
namespace {

constexpr std::size_t kLargestManifest = std::size_t{1} << 30;
constexpr std::size_t kReadElements = std::size_t{1} << 20;   // at once, when only a checksum is wanted

}  // namespace

Result<CheckpointReader> CheckpointReader::open(const std::string& path) {
  const auto failure = [](const std::string& what) { return Result<CheckpointReader>::failure(what); };
  const std::string manifest_path = (fs::path(path) / "manifest.json").string();
  const auto text = read_file(manifest_path, kLargestManifest);
  if (!text) return failure("no complete checkpoint in '" + path + "': " + text.error());
  const auto manifest = Manifest::decode(text.value());
  if (!manifest) return failure("'" + manifest_path + "' cannot be used: " + manifest.error());

  CheckpointReader reader;
  reader.path_ = path;
  reader.meta_ = manifest.value().meta;
  for (const Manifest::File& file : manifest.value().files) {
    const std::string file_path = (fs::path(path) / file.name).string();
    const auto opened = InputFile::open(file_path);
    if (!opened) return failure(opened.error());
    if (opened.value().size() != file.bytes)
      return failure("'" + file_path + "' has " + std::to_string(opened.value().size()) + " bytes instead of " +
                     std::to_string(file.bytes));
    for (const WrittenPiece& p : file.pieces)
      reader.shards_.push_back({file_path, p.kind, p.range, p.offset, p.checksum});
  }
  std::sort(reader.shards_.begin(), reader.shards_.end(), [](const Shard& a, const Shard& b) {
    return std::tie(a.kind, a.range.begin) < std::tie(b.kind, b.range.begin);
  });
  return reader;
}

Result<CheckpointReader> CheckpointReader::newest(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error))
    return Result<CheckpointReader>::failure("'" + directory + "' is not a directory");
  for (const std::string& path : step_directories(directory)) {
    auto reader = open(path);
    if (reader) {
      const auto verified = reader.value().verify();
      if (verified) return reader;
      log::warn("checkpoint '{}' is damaged and not used: {}", path, verified.error());
    } else {
      log::warn("checkpoint '{}' is not used: {}", path, reader.error());
    }
  }
  return Result<CheckpointReader>::failure("'" + directory + "' holds no complete checkpoint");
}

Result<std::monostate> CheckpointReader::read(int kind, Interval range, std::span<float> out) const {
  BELLOWS_CHECK_EQ(out.size(), range.size());
  std::size_t at = range.begin;
  for (const Shard& shard : shards_) {
    if (shard.kind != kind || shard.range.end <= at || shard.range.begin >= range.end) continue;
    const Interval part{std::max(at, shard.range.begin), std::min(range.end, shard.range.end)};
    if (part.begin != at) break;
    const auto file = InputFile::open(shard.file);
    if (!file) return Result<std::monostate>::failure(file.error());
    const auto target = out.subspan(part.begin - range.begin, part.size());
    const std::string error =
        file.value().read(shard.offset + (part.begin - shard.range.begin) * sizeof(float), std::as_writable_bytes(target));
    if (!error.empty()) return Result<std::monostate>::failure(error);
    // A checksum covers a whole run, so it can be held against what was read only where all of the run was wanted.
    if (part == shard.range && xxh64(std::as_bytes(target)) != shard.checksum)
      return Result<std::monostate>::failure("'" + shard.file + "' is damaged: elements " +
                                             std::to_string(part.begin) + "-" + std::to_string(part.end) + " of '" +
                                             meta_.kinds[kind] + "' do not fit their checksum");
    at = part.end;
  }
  if (at < range.end)
    return Result<std::monostate>::failure("'" + path_ + "' lacks elements from " + std::to_string(at));
  return std::monostate{};
}

Result<std::monostate> CheckpointReader::verify() const {
  std::vector<float> buffer;
  for (const Shard& shard : shards_) {
    const auto file = InputFile::open(shard.file);
    if (!file) return Result<std::monostate>::failure(file.error());
    Digest digest;
    for (std::size_t at = 0; at < shard.range.size();) {
      buffer.resize(std::min(kReadElements, shard.range.size() - at));
      const std::string error =
          file.value().read(shard.offset + at * sizeof(float), std::as_writable_bytes(std::span(buffer)));
      if (!error.empty()) return Result<std::monostate>::failure(error);
      digest.update(std::as_bytes(std::span(buffer)));
      at += buffer.size();
    }
    if (digest.value() != shard.checksum)
      return Result<std::monostate>::failure("'" + shard.file + "' is damaged: elements " +
                                             std::to_string(shard.range.begin) + "-" +
                                             std::to_string(shard.range.end) + " of '" + meta_.kinds[shard.kind] +
                                             "' do not fit their checksum");
  }
  return std::monostate{};
}

}  // namespace bellows

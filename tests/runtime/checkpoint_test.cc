#include "bellows/runtime/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "bellows/base/digest.h"
#include "bellows/base/log.h"
#include "bellows/runtime/engine.h"
#include "runtime/toy_job.h"

namespace fs = std::filesystem;

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A directory of its own for each test, and a small state in it to save and load.
class Checkpoint : public ::testing::Test {
 protected:
  static constexpr std::size_t kElements = 10'007;

  Checkpoint() {
    static std::atomic<int> number{0};
    dir_ = fs::path(::testing::TempDir()) / ("checkpoint-" + std::to_string(getpid()) + "-" + std::to_string(number++));
    fs::create_directories(dir_);
    const UnitId unit = set_.add_unit("all");
    set_.add(unit, "weight", {100, 100}, {});
    set_.add(unit, "empty", {0}, {});
    set_.add(unit, "bias", {7}, {});
    for (int kind = 0; kind < 2; ++kind) {
      values_.emplace_back(kElements);
      std::iota(values_[kind].begin(), values_[kind].end(), 1000.5f * static_cast<float>(kind + 1));
    }
  }
  ~Checkpoint() override {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }

  CheckpointMeta meta(std::int64_t step) const {
    return {step, set_.fingerprint(), "data", "adamw", {"master", "moment1"}, R"({"position": 12})"};
  }

  /// The pieces of one of `world` ranks: every third stretch of 500 elements or so, like chunks of a layout.
  std::vector<CheckpointPiece> pieces(int rank, int world) const {
    std::vector<CheckpointPiece> mine;
    for (int kind = 0; kind < 2; ++kind)
      for (std::size_t begin = 0, i = 0; begin < kElements; begin += 501, ++i)
        if (static_cast<int>(i) % world == rank) {
          const Interval range{begin, std::min(begin + 501, kElements)};
          mine.push_back({kind, range, std::span(values_[kind]).subspan(range.begin, range.size())});
        }
    return mine;
  }

  /// Saves with `world` ranks as threads; every rank must say the same.
  Result<std::string> save(Checkpointer& checkpointer, std::int64_t step, int world = 2) {
    std::vector<std::string> said(world);
    std::optional<Result<std::string>> first;
    test::run_ranks(world, ++generation_, [&](int rank, Communicator& comm) {
      auto saved = checkpointer.save(comm, meta(step), set_, pieces(rank, world));
      said[rank] = saved ? saved.value() : saved.error();
      if (rank == 0) first.emplace(std::move(saved));
    });
    for (const std::string& text : said) EXPECT_EQ(text, said[0]);
    return *first;
  }

  /// A published checkpoint of `step`.
  std::string saved(std::int64_t step, int world = 2) {
    Checkpointer checkpointer(dir_.string(), 100);
    return save(checkpointer, step, world).value_or_throw();
  }

  void expect_all_values(const CheckpointReader& reader) {
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<float> out(kElements);
      const auto read = reader.read(kind, {0, kElements}, out);
      ASSERT_TRUE(read.ok()) << read.error();
      EXPECT_EQ(out, values_[kind]);
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  static std::string contents(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
  static void flip(const fs::path& path, std::size_t at, int bit = 0) {
    std::string text = contents(path);
    text.at(at) = static_cast<char>(text.at(at) ^ (1 << bit));
    write(path, text);
  }
  /// What is wrong with the checkpoint at `path`: of opening it or of verifying it.
  static std::string fault(const std::string& path) {
    const auto reader = CheckpointReader::open(path);
    if (!reader) return reader.error();
    const auto sound = reader.value().verify();
    return sound ? "" : sound.error();
  }

  fs::path dir_;
  ParameterSet set_;
  std::vector<std::vector<float>> values_;
  std::uint64_t generation_ = 0;
};

// ---- What is written and read back ----

TEST_F(Checkpoint, GivesBackEveryElementWhateverTheWorldThatWroteIt) {
  for (const int world : {1, 2, 3, 5}) {
    const std::string path = saved(world, world);
    const auto reader = CheckpointReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.error();
    EXPECT_EQ(reader.value().path(), path);
    EXPECT_EQ(reader.value().meta().step, world);
    EXPECT_EQ(reader.value().meta().model_fingerprint, set_.fingerprint());
    EXPECT_EQ(reader.value().meta().job_fingerprint, "data");
    EXPECT_EQ(reader.value().meta().optimizer, "adamw");
    EXPECT_EQ(reader.value().meta().kinds, (std::vector<std::string>{"master", "moment1"}));
    EXPECT_EQ(reader.value().meta().extra, R"({"position": 12})");
    expect_all_values(reader.value());
    EXPECT_EQ(fault(path), "");
  }
}

TEST_F(Checkpoint, ReadsAnyInterval) {
  const auto reader = CheckpointReader::open(saved(1, 3)).value_or_throw();
  for (const Interval range : {Interval{0, 0}, Interval{0, 1}, Interval{500, 502}, Interval{501, 1002},
                               Interval{3, 10'006}, Interval{10'006, 10'007}, Interval{10'007, 10'007}}) {
    std::vector<float> out(range.size());
    const auto read = reader.read(1, range, out);
    ASSERT_TRUE(read.ok()) << read.error();
    EXPECT_TRUE(std::equal(out.begin(), out.end(), values_[1].begin() + static_cast<long>(range.begin)));
  }
  std::vector<float> out(2);
  EXPECT_THAT(reader.read(0, {10'006, 10'008}, out).error(), HasSubstr("no elements from 10007 of 'master'"));
  EXPECT_THAT(reader.read(2, {0, 2}, out).error(), HasSubstr("no array number 2"));
}

// Runs longer than one checksummed block, cut at odd places.
TEST_F(Checkpoint, ReadsPartsOfLargePieces) {
  ParameterSet big;
  const std::size_t count = (std::size_t{1} << 18) * 2 + 77;
  big.add(big.add_unit("big"), "weight", {static_cast<std::int64_t>(count)}, {});
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  CheckpointMeta info = meta(1);
  info.kinds = {"master"};
  Checkpointer checkpointer(dir_.string(), 1);
  std::string path;
  test::run_ranks(1, 1, [&](int, Communicator& comm) {
    path = checkpointer.save(comm, info, big, {{0, {0, count}, values}}).value_or_throw();
  });
  const auto reader = CheckpointReader::open(path).value_or_throw();
  const std::size_t block = std::size_t{1} << 18;
  for (const Interval range : {Interval{block - 3, block + 5}, Interval{block, 2 * block}, Interval{1, count - 1},
                               Interval{2 * block + 70, count}}) {
    std::vector<float> out(range.size());
    ASSERT_TRUE(reader.read(0, range, out).ok());
    EXPECT_EQ(out.front(), static_cast<float>(range.begin));
    EXPECT_EQ(out.back(), static_cast<float>(range.end - 1));
  }
  // A damaged element is noticed although only its neighbours are wanted, and only where it is.
  flip(fs::path(path) / "shard-0-of-1.safetensors", contents(fs::path(path) / "shard-0-of-1.safetensors").size() - 1);
  std::vector<float> one(1);
  EXPECT_TRUE(reader.read(0, {2 * block - 1, 2 * block}, one).ok());
  EXPECT_THAT(reader.read(0, {2 * block, 2 * block + 1}, one).error(),
              HasSubstr("shard-0-of-1.safetensors' is damaged"));
}

// Other programs read the shards by the rules of that format alone.
TEST_F(Checkpoint, ShardsAreValidSafetensors) {
  const fs::path path = saved(1, 2);
  std::set<std::string> tensors;
  for (const std::string name : {"shard-0-of-2.safetensors", "shard-1-of-2.safetensors"}) {
    const std::string file = contents(path / name);
    std::uint64_t header_size = 0;
    ASSERT_GE(file.size(), sizeof header_size);
    std::memcpy(&header_size, file.data(), sizeof header_size);
    ASSERT_LE(header_size, file.size() - 8);
    EXPECT_EQ(header_size % 8, 0u);
    EXPECT_EQ(file[8], '{');
    const auto header = nlohmann::ordered_json::parse(file.substr(8, header_size));
    std::uint64_t at = 0;
    for (const auto& [tensor, info] : header.items()) {
      EXPECT_TRUE(tensors.insert(tensor).second) << tensor;
      EXPECT_EQ(info["dtype"], "F32");
      const std::uint64_t count = info["shape"][0], from = info["data_offsets"][0], to = info["data_offsets"][1];
      EXPECT_EQ(info["shape"].size(), 1u);
      EXPECT_EQ(from, at);  // no holes
      EXPECT_EQ(to - from, count * 4);
      at = to;
      const std::size_t slash = tensor.find('/');
      const int kind = tensor.substr(0, slash) == "master" ? 0 : 1;
      const std::size_t begin = std::stoull(tensor.substr(slash + 1));
      float first = 0;
      std::memcpy(&first, file.data() + 8 + header_size + from, sizeof first);
      EXPECT_EQ(first, values_[kind][begin]);
    }
    EXPECT_EQ(8 + header_size + at, file.size());
  }
  EXPECT_EQ(tensors.size(), 40u);
}

TEST_F(Checkpoint, ManifestHoldsTheParameterTable) {
  const auto json = nlohmann::json::parse(contents(fs::path(saved(7)) / "manifest.json"));
  EXPECT_EQ(json["step"], 7);
  ASSERT_EQ(json["parameters"].size(), 3u);
  EXPECT_EQ(json["parameters"][0]["name"], "weight");
  EXPECT_EQ(json["parameters"][0]["shape"], (std::vector<int>{100, 100}));
  EXPECT_EQ(json["parameters"][2]["unit"], "all");
  EXPECT_EQ(json["parameters"][2]["begin"], 10'000);
}

TEST_F(Checkpoint, ARankWithNothingToWriteTakesPart) {
  Checkpointer checkpointer(dir_.string(), 1);
  test::run_ranks(3, 1, [&](int rank, Communicator& comm) {
    auto mine = rank == 2 ? std::vector<CheckpointPiece>{{0, {5, 5}, {}}} : pieces(rank, 2);
    ASSERT_TRUE(checkpointer.save(comm, meta(1), set_, mine).ok());
  });
  expect_all_values(CheckpointReader::open((dir_ / "step-00000001").string()).value_or_throw());
}

TEST_F(Checkpoint, RefusesToPublishPiecesThatDoNotMakeUpTheModel) {
  Checkpointer checkpointer(dir_.string(), 1);
  for (const bool twice : {false, true}) {
    test::run_ranks(2, ++generation_, [&](int rank, Communicator& comm) {
      auto mine = pieces(rank, 2);
      if (rank == 1 && !twice) mine.erase(mine.begin() + 1);
      if (rank == 1 && twice) mine.push_back(pieces(0, 2)[0]);
      const auto saved = checkpointer.save(comm, meta(1), set_, mine);
      ASSERT_FALSE(saved.ok());
      EXPECT_THAT(saved.error(), HasSubstr(twice ? "elements from 0 of 'master' are there twice"
                                                 : "elements from 1503 of 'master' are missing"));
    });
    EXPECT_TRUE(names().empty()) << names()[0];
  }
}

// ---- Nothing to resume from ----

TEST_F(Checkpoint, SaysWhyAPathIsNoCheckpoint) {
  const auto said = [](const fs::path& path) { return CheckpointReader::open(path.string()).error(); };
  EXPECT_THAT(said(dir_ / "misspelt"), AllOf(HasSubstr((dir_ / "misspelt").string()), HasSubstr("does not exist")));
  EXPECT_THAT(said(dir_), AllOf(HasSubstr(dir_.string()), HasSubstr("no complete checkpoint")));
  write(dir_ / "file", "text");
  EXPECT_THAT(said(dir_ / "file"), HasSubstr("file' is not a directory"));
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_THAT(said(dir_ / "loop"), AllOf(HasSubstr((dir_ / "loop").string()), HasSubstr("symbolic links")));
  const std::string step = saved(3);
  EXPECT_THAT(said(dir_), AllOf(HasSubstr("directory of checkpoints"), HasSubstr(step)));
}

TEST_F(Checkpoint, SaysWhyADirectoryHoldsNone) {
  const auto said = [](const fs::path& path) { return CheckpointReader::newest(path.string()).error(); };
  EXPECT_THAT(said(dir_ / "misspelt"), AllOf(HasSubstr((dir_ / "misspelt").string()), HasSubstr("No such file")));
  EXPECT_THAT(said(dir_), HasSubstr("'" + dir_.string() + "' holds no complete checkpoint"));
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_THAT(said(dir_ / "loop"), HasSubstr("symbolic links"));
  // Half-written, foreign and empty things do not count.
  fs::create_directories(dir_ / ".step-00000009.gen-1.partial");
  fs::create_directories(dir_ / "step-old");
  fs::create_directories(dir_ / "step-00000002");
  write(dir_ / "step-00000003", "a file");
  EXPECT_THAT(said(dir_), HasSubstr("step-00000003"));
}

TEST_F(Checkpoint, NamesADirectoryThatItMayNotRead) {
  const std::string path = saved(1);
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  const uid_t me = geteuid();
  if (me == 0) {
    ASSERT_EQ(seteuid(65534), 0);  // root may read everything
  }
  const std::string said = CheckpointReader::open(path).error();
  const std::string said_newest = CheckpointReader::newest(dir_.string()).error();
  if (me == 0) {
    ASSERT_EQ(seteuid(0), 0);
  }
  chmod(path.c_str(), 0755);
  EXPECT_THAT(said, AllOf(HasSubstr(path), HasSubstr("Permission denied")));
  EXPECT_THAT(said_newest, AllOf(HasSubstr(path), HasSubstr("Permission denied")));
}

// ---- Damage ----

TEST_F(Checkpoint, NoticesATruncatedShard) {
  const fs::path path = saved(1), shard = path / "shard-1-of-2.safetensors";
  for (const std::size_t left : {contents(shard).size() - 1, std::size_t{9}, std::size_t{0}}) {
    fs::resize_file(shard, left);
    EXPECT_THAT(fault(path), AllOf(HasSubstr(shard.string()), HasSubstr(std::to_string(left) + " bytes instead of")));
  }
}

TEST_F(Checkpoint, NoticesAMissingFile) {
  for (const std::string name : {"shard-1-of-2.safetensors", "manifest.json"}) {
    const fs::path path = saved(1);
    fs::remove(path / name);
    EXPECT_THAT(fault(path), HasSubstr((path / name).string()));
  }
}

TEST_F(Checkpoint, NoticesAnyFlippedBitOfAShard) {
  const fs::path path = saved(1), shard = path / "shard-0-of-2.safetensors";
  const std::string sound = contents(shard);
  for (std::size_t at = 0; at < sound.size(); at += at < 2000 ? 61 : 4099) {
    flip(shard, at, static_cast<int>(at % 8));
    EXPECT_THAT(fault(path), AllOf(HasSubstr(shard.string()), HasSubstr("damaged"))) << at;
    write(shard, sound);
  }
  EXPECT_EQ(fault(path), "");
}

TEST_F(Checkpoint, NoticesAnyFlippedBitOfTheManifest) {
  const fs::path path = saved(1), manifest = path / "manifest.json";
  const std::string sound = contents(manifest);
  for (std::size_t at = 0; at < sound.size(); at += 7) {
    flip(manifest, at, static_cast<int>(at / 7 % 8));
    EXPECT_THAT(fault(path), HasSubstr(manifest.string())) << "byte " << at;
  }
  for (std::size_t size = 0; size + 2 < sound.size(); size += 97) {
    write(manifest, sound.substr(0, size));
    EXPECT_THAT(fault(path), HasSubstr(manifest.string())) << size;
  }
}

// A manifest whose checksum fits, but whose content lies: no crash, no read outside, no large allocation.
TEST_F(Checkpoint, RefusesAHostileManifest) {
  const fs::path path = saved(1), manifest = path / "manifest.json";
  using Json = nlohmann::ordered_json;
  const Json sound = Json::parse(contents(manifest));
  const auto said = [&](const std::function<void(Json&)>& change) {
    Json json = sound;
    change(json);
    json.erase("checksum");
    const std::string text = json.dump();
    json["checksum"] = hex64(xxh64(std::as_bytes(std::span(text))));
    write(manifest, json.dump());
    const std::string what = fault(path);
    EXPECT_THAT(what, HasSubstr(path.string()));
    return what;
  };
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  EXPECT_EQ(fault(path), "");
  EXPECT_THAT(said([](Json& j) { j["files"][0]["name"] = "../../etc/passwd"; }),
              HasSubstr("cannot be in its directory"));
  EXPECT_THAT(said([](Json& j) { j["files"][0]["name"] = ""; }), HasSubstr("cannot be in its directory"));
  EXPECT_THAT(said([](Json& j) { j["files"][0]["name"] = 5; }), HasSubstr("not what it should be"));
  EXPECT_THAT(said([&](Json& j) { j["files"][0]["bytes"] = kHuge; }), HasSubstr("do not fill it"));
  EXPECT_THAT(said([&](Json& j) { j["files"][0]["header_bytes"] = kHuge; }), HasSubstr("do not follow"));
  EXPECT_THAT(said([&](Json& j) { j["files"][0]["pieces"][0]["offset"] = kHuge; }), HasSubstr("do not follow"));
  EXPECT_THAT(said([&](Json& j) { j["files"][0]["pieces"][0]["end"] = kHuge; }), HasSubstr("outside the model"));
  EXPECT_THAT(said([](Json& j) { j["files"][0]["pieces"][0]["begin"] = -1; }), HasSubstr("-1 is not a count"));
  EXPECT_THAT(said([](Json& j) { j["files"][0]["pieces"][0]["kind"] = 99; }), HasSubstr("unknown kind"));
  EXPECT_THAT(said([](Json& j) { j["files"][0]["pieces"][0]["xxh64"] = Json::array(); }), HasSubstr("checksums"));
  EXPECT_THAT(said([](Json& j) { j["files"][0]["pieces"][0]["xxh64"][0] = "zz"; }), HasSubstr("not a checksum"));
  EXPECT_THAT(said([&](Json& j) { j["elements"] = kHuge; }), HasSubstr("missing"));
  EXPECT_THAT(said([](Json& j) { j["elements"] = 1e300; }), HasSubstr("not a count"));
  EXPECT_THAT(said([](Json& j) { j["files"] = Json::array(); }), HasSubstr("missing"));
  EXPECT_THAT(said([](Json& j) { j.erase("kinds"); }), HasSubstr("kinds"));
  EXPECT_THAT(said([](Json& j) { j["version"] = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(said([](Json& j) { j["format"] = "other"; }), HasSubstr("not a checkpoint's manifest"));
  EXPECT_THAT(said([&](Json& j) {  // consistent, but of a file that is not so large
                j["files"][0]["header_bytes"] = std::uint64_t{1} << 50;
                std::uint64_t at = std::uint64_t{1} << 50;
                for (Json& piece : j["files"][0]["pieces"]) {
                  piece["offset"] = at;
                  at += 4 * (piece["end"].get<std::uint64_t>() - piece["begin"].get<std::uint64_t>());
                }
                j["files"][0]["bytes"] = at;
              }),
              HasSubstr("bytes instead of"));
  write(manifest, std::string(100'000, '['));
  EXPECT_THAT(fault(path), HasSubstr("it is not JSON"));
  write(manifest, "[]");
  EXPECT_THAT(fault(path), HasSubstr("it is not JSON"));
}

// A shard that says its header is huge, in a file that is: sparse files cost nothing to make.
TEST_F(Checkpoint, DoesNotAllocateWhatAHostileHeaderAsksFor) {
  const fs::path path = saved(1), shard = path / "shard-0-of-2.safetensors";
  std::string text = contents(shard);
  const std::uint64_t huge = ~std::uint64_t{0} - 7;
  std::memcpy(text.data(), &huge, sizeof huge);
  write(shard, text);
  EXPECT_THAT(fault(path), AllOf(HasSubstr(shard.string()), HasSubstr("damaged")));
  fs::resize_file(path / "manifest.json", std::uintmax_t{1} << 40);
  EXPECT_THAT(fault(path), AllOf(HasSubstr("manifest.json"), HasSubstr("more than the")));
}

TEST_F(Checkpoint, FallsBackToThePreviousCompleteOneEveryTime) {
  for (const std::int64_t step : {10, 20, 30, 40, 50}) saved(step);
  fs::rename(dir_ / "step-00000050", dir_ / ".step-00000050.gen-1.partial");   // killed before the rename
  fs::resize_file(dir_ / "step-00000040" / "shard-0-of-2.safetensors", 3000);  // truncated
  flip(dir_ / "step-00000030" / "shard-1-of-2.safetensors", 10'000);           // flipped byte
  fs::remove(dir_ / "step-00000020" / "manifest.json");
  for (int restart = 0; restart < 3; ++restart) {
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    const auto reader = CheckpointReader::newest(dir_.string());
    log::default_logger()->flush();
    const std::string logged = ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(reader.ok()) << reader.error();
    EXPECT_EQ(reader.value().meta().step, 10);
    EXPECT_THAT(logged, HasSubstr("step-00000040/shard-0-of-2.safetensors' has 3000 bytes instead of"));
    EXPECT_THAT(logged, HasSubstr("step-00000030/shard-1-of-2.safetensors' is damaged"));
    EXPECT_THAT(logged, HasSubstr("step-00000020/manifest.json"));
    expect_all_values(reader.value());
  }
}

TEST_F(Checkpoint, ReadingADamagedRunFailsAlsoWithoutVerifying) {
  const fs::path path = saved(1);
  const auto reader = CheckpointReader::open(path).value_or_throw();
  flip(path / "shard-0-of-2.safetensors", contents(path / "shard-0-of-2.safetensors").size() - 2);
  std::vector<float> one(1);
  int faults = 0;
  for (std::size_t at = 0; at < kElements; at += 100) faults += !reader.read(1, {at, at + 1}, one).ok();
  EXPECT_EQ(faults, 5);  // the one piece of 501 elements that holds it
}

// ---- Saving over and over ----

TEST_F(Checkpoint, KeepsTheNewest) {
  Checkpointer checkpointer(dir_.string(), 2);
  for (const std::int64_t step : {1, 2, 3, 4}) ASSERT_TRUE(save(checkpointer, step).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000003", "step-00000004"}));
}

TEST_F(Checkpoint, NeverKeepsLessThanOne) {
  Checkpointer checkpointer(dir_.string(), -3);
  for (const std::int64_t step : {1, 2}) ASSERT_TRUE(save(checkpointer, step).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000002"}));
}

TEST_F(Checkpoint, ADamagedOneDoesNotPushOutASoundOne) {
  Checkpointer checkpointer(dir_.string(), 2);
  for (const std::int64_t step : {1, 2}) ASSERT_TRUE(save(checkpointer, step).ok());
  fs::resize_file(dir_ / "step-00000002" / "shard-0-of-2.safetensors", 10);
  ASSERT_TRUE(save(checkpointer, 3).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000001", "step-00000002", "step-00000003"}));
  ASSERT_TRUE(save(checkpointer, 4).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000003", "step-00000004"}));
}

TEST_F(Checkpoint, ASaveAfterARollbackIsNotRemovedForItsLowNumber) {
  Checkpointer checkpointer(dir_.string(), 2);
  for (const std::int64_t step : {10, 20, 5}) ASSERT_TRUE(save(checkpointer, step).ok());
  EXPECT_THAT(names(), ::testing::Contains("step-00000005"));
}

TEST_F(Checkpoint, SavingAStepAgainReplacesIt) {
  Checkpointer checkpointer(dir_.string(), 1);
  ASSERT_TRUE(save(checkpointer, 7, 3).ok());
  for (auto& kind : values_)
    for (float& value : kind) value += 0.25f;
  ASSERT_TRUE(save(checkpointer, 7, 2).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000007"}));
  EXPECT_FALSE(fs::exists(dir_ / "step-00000007" / "shard-2-of-3.safetensors"));
  expect_all_values(CheckpointReader::newest(dir_.string()).value_or_throw());
}

// Where a file system cannot exchange two names, a kill between two renames leaves the old one under its second name.
TEST_F(Checkpoint, FindsTheOldOneAfterAKillInTheMiddleOfReplacing) {
  saved(7);
  fs::rename(dir_ / "step-00000007", dir_ / "step-00000007.replaced");
  expect_all_values(CheckpointReader::newest(dir_.string()).value_or_throw());
  Checkpointer checkpointer(dir_.string(), 1);
  ASSERT_TRUE(save(checkpointer, 7).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000007"}));
}

TEST_F(Checkpoint, TheNextSaveRemovesWhatAKilledOneLeft) {
  fs::create_directories(dir_ / ".step-00000009.gen-4.partial");
  write(dir_ / ".step-00000009.gen-4.partial" / "shard-0-of-4.safetensors", "half");
  fs::create_directories(dir_ / ".step-00000010.gen-1.partial");
  write(dir_ / "notes.txt", "of the user");
  ASSERT_TRUE(fs::exists(saved(10)));
  EXPECT_EQ(names(), (std::vector<std::string>{"notes.txt", "step-00000010"}));
}

TEST_F(Checkpoint, MakesTheDirectoryAndItsParents) {
  Checkpointer checkpointer((dir_ / "a" / "b/").string(), 1);
  const auto path = save(checkpointer, 1);
  ASSERT_TRUE(path.ok()) << path.error();
  EXPECT_EQ(path.value(), (dir_ / "a" / "b" / "step-00000001").string());
}

// ---- Failed saves ----

TEST_F(Checkpoint, AllRanksGetTheReasonWhenTheDirectoryCannotBeMade) {
  write(dir_ / "file", "");
  Checkpointer checkpointer((dir_ / "file" / "checkpoints").string(), 1);
  const auto result = save(checkpointer, 1, 3);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error(), AllOf(HasSubstr((dir_ / "file").string()), HasSubstr("is not a directory")));
}

TEST_F(Checkpoint, FullDiskIsReportedAndTheOldOneStays) {
  if (mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=8m") != 0)
    GTEST_SKIP() << "mounting a small tmpfs needs root (" << std::strerror(errno) << ")";
  struct Unmount {
    fs::path path;
    ~Unmount() { umount2(path.c_str(), MNT_DETACH); }
  } unmount{dir_};

  saved(1);
  ParameterSet big;
  const std::size_t count = 3 << 20;  // 12 MiB
  big.add(big.add_unit("big"), "weight", {static_cast<std::int64_t>(count)}, {});
  const std::vector<float> values(count, 1.5f);
  CheckpointMeta info = meta(2);
  info.kinds = {"master"};
  Checkpointer checkpointer(dir_.string(), 1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::vector<std::string> said(3);
    test::run_ranks(3, ++generation_, [&](int rank, Communicator& comm) {
      const Interval mine = even_chunk(count, 3, rank);
      const auto result =
          checkpointer.save(comm, info, big, {{0, mine, std::span(values).subspan(mine.begin, mine.size())}});
      ASSERT_FALSE(result.ok());
      said[rank] = result.error();
      comm.barrier();  // the communicator is still good: training goes on
    });
    EXPECT_EQ(said[1], said[0]);
    EXPECT_EQ(said[2], said[0]);
    EXPECT_THAT(said[0], AllOf(HasSubstr(dir_.string()), HasSubstr("shard-"), HasSubstr("No space left on device"),
                               HasSubstr("of 4.0 MiB"), HasSubstr("bytes are needed")));
    EXPECT_EQ(names(), (std::vector<std::string>{"step-00000001"}));
  }
  expect_all_values(CheckpointReader::newest(dir_.string()).value_or_throw());
  EXPECT_TRUE(save(checkpointer, 3).ok());  // there is room for a small one
}

TEST_F(Checkpoint, ASaveByOneRankOnlyNamesTheMissing) {
  saved(1);
  InprocBootstrap bootstrap;
  std::vector<std::thread> threads;
  std::atomic<bool> done{false};
  std::vector<int> missing;
  std::string operation, what;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      CommOptions options;
      options.timeout_s = 0.4;
      auto comm = connect(World{rank, 4, rank, 4, 9}, bootstrap, options);
      if (rank != 0) {
        while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      Checkpointer checkpointer(dir_.string(), 1);
      try {
        (void)checkpointer.save(*comm, meta(2), set_, pieces(0, 4));
      } catch (const CommError& error) {
        missing = error.ranks();
        operation = error.operation();
        what = error.what();
      }
      done = true;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(missing, (std::vector<int>{1, 2, 3})) << what;
  EXPECT_THAT(operation, HasSubstr("checkpoint"));
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000001"}));
}

// A rank that goes away in the middle of its shard: the others get CommError, the older checkpoints are untouched, the
// next generation saves the same step.
TEST_F(Checkpoint, APeerLostInASaveLeavesTheOldOnesIntact) {
  saved(1);
  Checkpointer checkpointer(dir_.string(), 1);
  std::atomic<int> lost{0};
  test::run_ranks(3, ++generation_, [&](int rank, Communicator& comm) {
    if (rank == 1) {
      comm.all_gather_blobs("+", "checkpoint: preparing");
      comm.abort("test: rank 1 goes away");
      return;
    }
    try {
      (void)checkpointer.save(comm, meta(2), set_, pieces(rank, 3));
    } catch (const CommError&) {
      ++lost;
    }
  });
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(CheckpointReader::newest(dir_.string()).value_or_throw().meta().step, 1);
  ASSERT_TRUE(save(checkpointer, 2).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000002"}));
}

// ---- Whole training state ----

// cases.md, "Another world size": what 4 ranks saved at stages 1, 2, 3 comes back on 1, 2, 3 and 6, bit by bit, and the
// steps after it are those of a run without a stop.
class CheckpointOfTraining : public Checkpoint, public ::testing::WithParamInterface<int> {};

test::ToyJob toy_job(int stage) {
  test::ToyJob job;
  job.engine = test::toy_options(stage);
  return job;
}

TEST_P(CheckpointOfTraining, ResumesOnAnyWorldWithTheSameBits) {
  const test::ToyJob job = toy_job(GetParam());
  constexpr int kBefore = 10, kAfter = 4;
  const test::ToyRun straight = test::run_phases(job, {{4, kBefore}, {4, kAfter}});
  const auto run = [&](test::ToyRank& rank, Communicator& comm, int steps, std::vector<std::uint32_t>* losses) {
    Engine& engine = rank.engine;
    for (int s = 0; s < steps; ++s) {
      const StepResult result =
          engine.run_step([&](Step& step) { test::toy_step(step, engine.parameters(), job.engine.precision, job); });
      if (comm.world().rank == 0) losses->push_back(std::bit_cast<std::uint32_t>(result.loss));
    }
    engine.settle();
  };

  Checkpointer checkpointer(dir_.string(), 5);
  std::vector<std::uint32_t> losses;
  Engine::Digests at_save;
  test::run_ranks(4, 1, [&](int r, Communicator& comm) {
    test::ToyRank rank(job);
    rank.engine.enter(comm, 4, nullptr);
    rank.engine.attach(comm);
    run(rank, comm, kBefore, &losses);
    ASSERT_TRUE(rank.engine.save(checkpointer, "").ok());
    const auto digests = rank.engine.digests();
    if (r == 0) at_save = digests;
    comm.barrier();
    rank.engine.detach();
  });
  const std::string path = CheckpointReader::newest(dir_.string()).value_or_throw().path();
  for (const int world : {1, 2, 3, 6}) {
    std::vector<std::uint32_t> resumed = losses;
    Engine::Digests loaded, at_end;
    test::ToyJob other = toy_job((GetParam() + world) % 4);  // the stage may change too
    test::run_ranks(world, 10 + static_cast<std::uint64_t>(world), [&](int r, Communicator& comm) {
      test::ToyRank rank(other);
      const EntryResult entry = rank.engine.enter(comm, world, [&] { return std::optional(path); });
      EXPECT_EQ(entry.source, EntryResult::Source::kCheckpoint);
      EXPECT_EQ(entry.step, kBefore);
      EXPECT_EQ(rank.engine.updates(), kBefore);
      rank.engine.attach(comm);
      const auto first = rank.engine.digests();
      run(rank, comm, kAfter, &resumed);
      const auto last = rank.engine.digests();
      if (r == 0) loaded = first, at_end = last;
      comm.barrier();
      rank.engine.detach();
    });
    EXPECT_EQ(loaded.parameters, at_save.parameters) << world;
    EXPECT_EQ(loaded.optimizer, at_save.optimizer) << world;
    EXPECT_EQ(resumed, straight.loss_bits) << world;
    EXPECT_EQ(at_end.parameters, straight.digests.parameters) << world;
    EXPECT_EQ(at_end.optimizer, straight.digests.optimizer) << world;
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, CheckpointOfTraining, ::testing::Values(0, 1, 2, 3));

// cases.md, "Step and moments lost": a save at step 0 and one right after a skipped step.
TEST_F(Checkpoint, KeepsTheCountOfStepsAndUpdatesAtStepZeroAndAfterASkippedStep) {
  test::ToyJob job = toy_job(2);
  job.poison = [](std::int64_t step, int lane) {
    return step == 1 && lane == 3 ? std::numeric_limits<float>::infinity() : 0.0f;
  };
  Checkpointer checkpointer(dir_.string(), 5);
  std::vector<Engine::Digests> saved_state(3), loaded(3);
  std::vector<std::int64_t> updates(3), loaded_updates(3);
  const auto step_once = [&](Engine& engine) {
    return engine.run_step([&](Step& step) { test::toy_step(step, engine.parameters(), job.engine.precision, job); });
  };
  test::run_ranks(2, 1, [&](int r, Communicator& comm) {
    test::ToyRank rank(job);
    rank.engine.enter(comm, 2, nullptr);
    rank.engine.attach(comm);
    for (int at = 0; at < 3; ++at) {
      ASSERT_TRUE(rank.engine.save(checkpointer, "").ok());
      const auto digests = rank.engine.digests();
      if (r == 0) saved_state[at] = digests, updates[at] = rank.engine.updates();
      if (at < 2) step_once(rank.engine);
      rank.engine.settle();
    }
    comm.barrier();
    rank.engine.detach();
  });
  for (int at = 0; at < 3; ++at)
    test::run_ranks(1, 10 + static_cast<std::uint64_t>(at), [&](int, Communicator& comm) {
      test::ToyRank rank(job);
      const auto entry = rank.engine.enter(
          comm, 1, [&] { return std::optional((dir_ / ("step-0000000" + std::to_string(at))).string()); });
      EXPECT_EQ(entry.step, at);
      rank.engine.attach(comm);
      loaded[at] = rank.engine.digests();
      loaded_updates[at] = rank.engine.updates();
      rank.engine.detach();
    });
  EXPECT_EQ(updates[0], 0);
  EXPECT_EQ(updates[2], 1);  // one of the two steps was skipped
  EXPECT_EQ(loaded_updates, updates);
  for (int at = 0; at < 3; ++at) {
    EXPECT_EQ(loaded[at].parameters, saved_state[at].parameters) << at;
    EXPECT_EQ(loaded[at].optimizer, saved_state[at].optimizer) << at;
  }
}

TEST_F(Checkpoint, OfAnotherModelOrOptimizerOrJobIsRefusedByAllRanks) {
  const std::string path = saved(1);  // not the toy model
  const test::ToyJob job = toy_job(1);
  test::run_ranks(2, 1, [&](int, Communicator& comm) {
    test::ToyRank rank(job);
    try {
      rank.engine.enter(comm, 2, [&] { return std::optional(path); });
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path), HasSubstr("another model")));
    }
  });
  // The same model, another job.
  Checkpointer checkpointer(dir_.string(), 5);
  const auto with = [&](const std::string& fingerprint) {
    test::ToyJob mine = job;
    mine.engine.job_fingerprint = fingerprint;
    return mine;
  };
  std::string toy_path;
  test::run_ranks(1, 2, [&](int, Communicator& comm) {
    test::ToyRank rank(with("data A"));
    rank.engine.enter(comm, 1, nullptr);
    rank.engine.attach(comm);
    toy_path = rank.engine.save(checkpointer, "").value_or_throw();
    rank.engine.detach();
  });
  test::run_ranks(1, 3, [&](int, Communicator& comm) {
    test::ToyRank rank(with("data B"));
    try {
      rank.engine.enter(comm, 1, [&] { return std::optional(toy_path); });
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(toy_path), HasSubstr("data A"), HasSubstr("data B")));
    }
  });
}

}  // namespace
}  // namespace bellows

#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "bellows/base/digest.h"
#include "bellows/runtime/checkpoint.h"
#include "bellows/runtime/engine.h"
#include "runtime/toy_job.h"

namespace bellows {

namespace fs = std::filesystem;

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

}  // namespace bellows

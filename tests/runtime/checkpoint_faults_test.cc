// Damage, saving over and over, and saves that fail: nothing that was complete is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/base/log.h"
#include "runtime/checkpoint_fixture.h"

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace bellows

// What is written is read back: formats, worlds, whole training states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

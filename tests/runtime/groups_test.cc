// Parameters in groups, and parameters with a dtype of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bellows/runtime/memory_plan.h"
#include "runtime/job_stretch.h"

namespace bellows::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ParameterGroup kHead{.name = "head", .learning_rate_scale = 0.5, .weight_decay = 0.0};
const ParameterGroup kStem{.name = "stem", .learning_rate_scale = 3, .weight_decay = 0.25, .frozen_from_step = 3};

/// A job of any parameters: every sample pulls every element towards a target of its own. Gradients of `poisoned`
/// parameters are infinite.
AnyJob pulling(ParameterSet set, const EngineOptions& options, const std::string& poisoned = "") {
  const auto visit = [poisoned](const UnitUse& use, const ParameterSet& set, int u, const MicroBatch& batch,
                                bool backward) {
    double loss = 0;
    for (const ParamId id : set.units()[u].parameters) {
      const Parameter& p = set.parameter(id);
      const std::size_t begin = set.units()[u].begin + p.offset;
      for (std::size_t i = 0; i < p.count; ++i) {
        const float value =
            use.dtype(id) == DType::kF32 ? use.param<float>(id)[i] : static_cast<float>(use.param<bf16>(id)[i]);
        float gradient = 0;
        for (const std::int64_t sample : batch.samples()) {
          const Philox random(99, static_cast<std::uint64_t>(sample));
          const float away = value - static_cast<float>(random.uniform(begin + i)) + 0.5f;
          gradient += away;
          loss += 0.5 * away * away;
        }
        if (!backward) continue;
        if (p.name == poisoned) gradient = std::numeric_limits<float>::infinity();
        use.grad(id)[i] = use.accumulate() ? use.grad(id)[i] + gradient : gradient;
      }
    }
    return loss;
  };
  const auto step = [visit](Step& step, const ParameterSet& set) {
    const int units = static_cast<int>(set.units().size());
    for (MicroBatch& batch : step) {
      double loss = 0;
      for (int u = 0; u < units; ++u) loss += visit(batch.forward(UnitId{u}), set, u, batch, false);
      if (!step.evaluating())
        for (int u = units - 1; u >= 0; --u) visit(batch.backward(UnitId{u}), set, u, batch, true);
      batch.report(loss, static_cast<std::int64_t>(batch.samples().size()));
    }
  };
  return {std::move(set), options, [] { return make_adamw(); }, step};
}

EngineOptions options_of(int stage, DType precision = DType::kF32, int lanes = 5) {
  EngineOptions options = toy_options(stage, precision);
  options.lanes = lanes;
  return options;
}

/// Units that a chunk's border cuts, with neighbours in other groups. `declared`: in which order groups are.
ParameterSet grouped(const std::vector<ParameterGroup>& declared) {
  ParameterSet set;
  for (const ParameterGroup& group : declared) set.add_group(group);
  for (int i = 0; i < 2; ++i) {
    const std::string name = "block" + std::to_string(i);
    const UnitId block = set.add_unit(name);
    set.add(block, name + ".stem", {701}, {.init = Init::normal(0.5f), .group = "stem"});
    set.add(block, name + ".weight", {41, 9}, {.init = Init::normal(0.5f)});
    set.add(block, name + ".head", {510}, {.init = Init::normal(0.5f), .group = "head"});
    set.add(block, name + ".bias", {3}, {.init = Init::ones(), .decay = false, .group = "stem"});
  }
  return set;
}

void expect_same(const StretchResult& got, const StretchResult& wanted) {
  EXPECT_EQ(got.after.parameters, wanted.after.parameters);
  EXPECT_EQ(got.after.optimizer, wanted.after.optimizer);
  EXPECT_EQ(got.parameters, wanted.parameters);
}

std::string at(int stage, int world) { return "stage " + std::to_string(stage) + " world " + std::to_string(world); }

// What a job is told that starts from `path`.
std::string refusal(const AnyJob& job, const std::string& path) {
  try {
    run_stretch(job, {2, 0, path, ""});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string declaring(const std::function<void(ParameterSet&)>& declare) {
  ParameterSet set;
  set.add_group(kHead);
  const UnitId unit = set.add_unit("unit");
  try {
    declare(set);
    set.add(unit, "last", {1});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// ---- Groups ----

TEST(ParameterGroup, ScalesTheLearningRateAndReplacesTheDecay) {
  // Plain descent of the constant gradient 1 from the value 1 with learning rate 1/8: what is left is the arithmetic.
  ParameterSet set;
  set.add_group({.name = "slow", .learning_rate_scale = 0.5});
  set.add_group({.name = "decaying", .weight_decay = 2.0});
  set.add_group({.name = "still", .learning_rate_scale = 0});
  const UnitId unit = set.add_unit("unit");
  set.add(unit, "alone", {1}, {.init = Init::ones()});
  set.add(unit, "slow", {1}, {.init = Init::ones(), .group = "slow"});
  set.add(unit, "decaying", {1}, {.init = Init::ones(), .group = "decaying"});
  set.add(unit, "exempt", {1}, {.init = Init::ones(), .decay = false, .group = "decaying"});
  set.add(unit, "still", {1}, {.init = Init::ones(), .group = "still"});
  EngineOptions options;
  options.lanes = 1;
  options.clip_norm = 0;
  options.schedule.peak = 0.125;
  const AnyJob job{set, options, [] { return make_sgd({.momentum = 0, .weight_decay = 1}); },
                   [](Step& step, const ParameterSet&) {
                     for (MicroBatch& batch : step) {
                       const UnitUse use = batch.backward(UnitId{0});
                       for (int i = 0; i < 5; ++i) use.grads()[i] = 1;
                       batch.report(0, 1);
                     }
                   }};
  EXPECT_EQ(run_stretch(job, {1, 1, "", ""}).floats(), (std::vector<float>{0.75f, 0.875f, 0.625f, 0.875f, 1.0f}));
}

TEST(ParameterGroup, GivesTheSameBitsOnEveryWorldAndStage) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    const StretchResult reference =
        run_stretch(pulling(grouped({kHead, kStem}), options_of(0, precision)), {1, 5, "", ""});
    const StretchResult without =
        run_stretch(pulling(grouped({{.name = "head"}, {.name = "stem"}}), options_of(0, precision)), {1, 5, "", ""});
    EXPECT_NE(reference.after.parameters, without.after.parameters);
    for (int stage = 0; stage <= 3; ++stage)
      for (int world = 2; world <= 5; ++world) {
        SCOPED_TRACE(at(stage, world));
        const StretchResult run =
            run_stretch(pulling(grouped({kStem, kHead}), options_of(stage, precision)), {world, 5, "", ""});
        expect_same(run, reference);
        EXPECT_EQ(run.loss_bits(), reference.loss_bits());
        for (std::size_t i = 0; i < run.steps.size(); ++i)
          EXPECT_EQ(run.steps[i].grad_norm, reference.steps[i].grad_norm);
      }
  }
}

TEST(ParameterGroup, OfTheDefaultSettingsChangesNoBit) {
  ParameterSet plain;
  const UnitId unit = plain.add_unit("block");
  ParameterSet in_groups = plain;
  in_groups.add_group({.name = "a"});
  in_groups.add_group({.name = "b"});
  for (int i = 0; i < 4; ++i) {
    plain.add(unit, "p" + std::to_string(i), {777}, {.init = Init::normal(1)});
    in_groups.add(unit, "p" + std::to_string(i), {777}, {.init = Init::normal(1), .group = i % 2 ? "a" : "b"});
  }
  const StretchResult run = run_stretch(pulling(in_groups, options_of(2)), {2, 3, "", ""});
  const StretchResult reference = run_stretch(pulling(plain, options_of(2)), {2, 3, "", ""});
  expect_same(run, reference);
  EXPECT_EQ(run.steps.back().grad_norm, reference.steps.back().grad_norm);  // neighbours are summed as one stretch
}

TEST(ParameterGroup, FrozenFromAStepKeepsValuesAndMomentsAndLeavesTheNorm) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const AnyJob job = pulling(grouped({kHead, kStem}), options_of(stage));
    const TemporaryDirectory directory;
    const StretchResult three = run_stretch(job, {3, 3, "", directory.string()});
    const StretchResult five = run_stretch(job, {2, 2, three.saved, directory.string()});
    const StretchResult straight = run_stretch(job, {4, 5, "", ""});
    expect_same(five, straight);
    EXPECT_LT(five.steps[0].grad_norm, 0.9 * three.steps.back().grad_norm);

    const auto before = CheckpointReader::open(three.saved).value_or_throw();
    const auto after = CheckpointReader::open(five.saved).value_or_throw();
    for (const Parameter& p : job.parameters.parameters())
      for (int kind = 0; kind < static_cast<int>(before.meta().kinds.size()); ++kind) {
        const std::size_t begin = job.parameters.unit(p.unit).begin + p.offset;
        std::vector<float> then(p.count), now(p.count);
        ASSERT_TRUE(before.read(kind, {begin, begin + p.count}, then).ok());
        ASSERT_TRUE(after.read(kind, {begin, begin + p.count}, now).ok());
        EXPECT_EQ(then == now, p.options.group == "stem") << p.name << " " << before.meta().kinds[kind];
        EXPECT_NE(then, std::vector<float>(p.count, 0.0f)) << p.name;
      }
  }
}

TEST(ParameterGroup, FreezesAtTheSameStepWhenTheWorldChanges) {
  // Steps on another world each, by living ranks and without a checkpoint; the freeze lies at a change.
  const AnyJob job = pulling(grouped({kHead, kStem}), options_of(3));
  const StretchResult straight = run_stretch(job, {1, 5, "", ""});
  const TemporaryDirectory directory;
  std::string from;
  StretchResult last;
  for (const int world : {2, 5, 3, 1, 4}) {
    last = run_stretch(job, {world, 1, from, directory.string()});
    from = last.saved;
  }
  expect_same(last, straight);
}

TEST(ParameterGroup, AFrozenOnesGradientMayBeAnything) {
  ParameterSet set;
  set.add_group({.name = "stem", .frozen_from_step = 0});
  const UnitId unit = set.add_unit("unit");
  set.add(unit, "frozen", {5}, {.frozen = true});
  set.add(unit, "stem", {5}, {.group = "stem"});
  set.add(unit, "weight", {5});
  for (const std::string poisoned : {"frozen", "stem", "weight"}) {
    const StretchResult run = run_stretch(pulling(set, options_of(2), poisoned), {2, 1, "", ""});
    EXPECT_EQ(run.steps[0].skipped, poisoned == "weight") << poisoned;
    EXPECT_EQ(std::isfinite(run.steps[0].grad_norm), poisoned != "weight") << poisoned;
  }
}

TEST(ParameterGroup, ComesBackByNameWhateverTheOrder) {
  const TemporaryDirectory directory;
  const StretchResult saved =
      run_stretch(pulling(grouped({kHead, kStem}), options_of(2)), {3, 2, "", directory.string()});
  const auto reader = CheckpointReader::open(saved.saved).value_or_throw();
  EXPECT_EQ(reader.meta().groups, (std::vector<ParameterGroup>{kHead, kStem}));
  EXPECT_EQ(reader.meta().group_of.at("block1.bias"), "stem");
  EXPECT_EQ(reader.meta().group_of.count("block1.weight"), 0u);
  const StretchResult straight = run_stretch(pulling(grouped({kHead, kStem}), options_of(0)), {1, 4, "", ""});
  expect_same(run_stretch(pulling(grouped({kStem, kHead}), options_of(1)), {2, 2, saved.saved, ""}), straight);
}

TEST(ParameterGroup, OfOtherSettingsThanTheCheckpointsIsRefusedUnlessAccepted) {
  const TemporaryDirectory directory;
  const StretchResult saved =
      run_stretch(pulling(grouped({kHead, kStem}), options_of(2)), {2, 1, "", directory.string()});
  ParameterGroup other = kHead;
  other.learning_rate_scale = 0.1;
  AnyJob changed = pulling(grouped({other, kStem}), options_of(2));
  EXPECT_THAT(refusal(changed, saved.saved),
              AllOf(HasSubstr("the parameter group 'head' with learning_rate_scale 0.5"),
                    HasSubstr("this job has it with learning_rate_scale 0.1"), HasSubstr("accept_changed_groups")));
  EXPECT_THAT(refusal(pulling(grouped({kHead, kStem, {.name = "extra"}}), options_of(2)), saved.saved),
              HasSubstr("the parameter group 'extra' not at all"));
  changed.options.accept_changed_groups = true;
  EXPECT_EQ(run_stretch(changed, {1, 1, saved.saved, ""}).before.optimizer, saved.after.optimizer);
}

TEST(ParameterGroup, WithOtherMembersThanInTheCheckpointIsRefused) {
  const auto two = [](const std::string& group) {
    ParameterSet set;
    set.add_group(kHead);
    const UnitId unit = set.add_unit("unit");
    set.add(unit, "a", {4}, {.group = "head"});
    set.add(unit, "b", {4}, {.group = group});
    return pulling(set, options_of(1));
  };
  const TemporaryDirectory directory;
  const StretchResult saved = run_stretch(two("head"), {1, 1, "", directory.string()});
  EXPECT_THAT(refusal(two(""), saved.saved),
              HasSubstr("the parameter 'b' in the group 'head', this job has it in no group"));
}

TEST(ParameterGroup, IsPartOfWhatRanksOfAJobMustAgreeOn) {
  const auto fingerprint = [](const ParameterSet& set) {
    ThreadPool pool(1);
    return Engine(set, make_adamw(), options_of(2), pool).fingerprint();
  };
  ParameterGroup later = kStem;
  later.frozen_from_step = 4;
  EXPECT_EQ(fingerprint(grouped({kHead, kStem})), fingerprint(grouped({kStem, kHead})));
  EXPECT_NE(fingerprint(grouped({kHead, kStem})), fingerprint(grouped({kHead, later})));
}

TEST(ParameterGroup, ThatMakesNoSenseIsRefusedByName) {
  EXPECT_THAT(declaring([](ParameterSet&) {}), IsEmpty());
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add_group(kHead); }), HasSubstr("'head' is declared twice"));
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add_group({.name = ""}); }), HasSubstr("needs a name"));
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add_group({.name = "x", .learning_rate_scale = -1}); }),
              AllOf(HasSubstr("'x'"), HasSubstr("learning_rate_scale -1")));
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add_group({.name = "x", .weight_decay = std::nan("")}); }),
              HasSubstr("weight_decay nan"));
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add_group({.name = "x", .frozen_from_step = -2}); }),
              HasSubstr("frozen_from_step -2"));
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add(UnitId{0}, "p", {1}, {.group = "hed"}); }),
              AllOf(HasSubstr("parameter 'p'"), HasSubstr("'hed'"), HasSubstr("known: head")));
  EXPECT_THAT(declaring([](ParameterSet& set) { set.add(UnitId{0}, "p", {1}, {.dtype = DType::kU8}); }),
              AllOf(HasSubstr("parameter 'p'"), HasSubstr("u8")));
}

// ---- Dtypes ----

constexpr std::optional<DType> kAsTheRun{};

/// `one_unit`: all side by side; else units of two, of which some are of one dtype only. Every other one, from `first`
/// on, asks for `dtype`.
ParameterSet odd(const std::vector<std::int64_t>& sizes, DType dtype, std::size_t first, bool one_unit) {
  ParameterSet set;
  UnitId unit;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i == 0 || (!one_unit && i % 2 == 0)) unit = set.add_unit("unit" + std::to_string(i));
    set.add(unit, "p" + std::to_string(i), {sizes[i]},
            {.init = Init::normal(0.5f), .dtype = i % 2 == first ? std::optional(dtype) : kAsTheRun});
  }
  return set;
}

TEST(MixedDTypes, TrainSaveAndLoadAtEveryStageAndWorld) {
  // The last ones are cut by chunks, at odd places too.
  const std::vector<std::vector<std::int64_t>> orders = {
      {0, 1, 3, 8, 24}, {24, 8, 0, 3, 1}, {3, 1, 24, 8, 0}, {1, 1023, 1, 1500, 2049, 7}};
  for (const DType precision : {DType::kBF16, DType::kF32})
    for (std::size_t o = 0; o < orders.size(); ++o) {
      const DType other = precision == DType::kF32 ? DType::kBF16 : DType::kF32;
      const ParameterSet set = odd(orders[o], other, o % 2, o != 2);
      const StretchResult reference = run_stretch(pulling(set, options_of(0, precision)), {1, 3, "", ""});
      std::size_t bytes = 0;
      for (const Parameter& p : set.parameters()) bytes += p.count * size_of(p.options.dtype.value_or(precision));
      EXPECT_EQ(reference.parameters.size(), bytes);
      for (int stage = 0; stage <= 3; ++stage)
        for (int world = 1; world <= 5; ++world) {
          SCOPED_TRACE(at(stage, world) + " order " + std::to_string(o) + " precision " +
                       std::string(name_of(precision)));
          const TemporaryDirectory directory;
          const StretchResult half =
              run_stretch(pulling(set, options_of(stage, precision)), {world, 2, "", directory.string()});
          const int next = (stage + world) % 4;
          const StretchResult rest =
              run_stretch(pulling(set, options_of(next, precision)), {6 - world, 1, half.saved, ""});
          EXPECT_EQ(rest.before.parameters, half.after.parameters);
          expect_same(rest, reference);
          EXPECT_EQ(rest.loss_bits()[0], reference.loss_bits()[2]);
        }
    }
}

// Each parameter as if the whole run were in its dtype: elements of this model do not see each other but for clipping.
TEST(MixedDTypes, GiveEachParameterTheBitsOfARunInItsDType) {
  const std::vector<std::int64_t> sizes = {3, 1030, 5, 2000};
  const auto values = [&](const ParameterSet& set, DType precision) {
    EngineOptions options = options_of(3, precision);
    options.clip_norm = 0;
    return run_stretch(pulling(set, options), {3, 3, "", ""}).parameters;
  };
  const ParameterSet mixed = odd(sizes, DType::kF32, 1, true);
  const auto got = values(mixed, DType::kBF16);
  const auto narrow = values(odd(sizes, DType::kBF16, 1, true), DType::kBF16);
  const auto wide = values(odd(sizes, DType::kF32, 1, true), DType::kF32);
  std::size_t at = 0;
  for (const Parameter& p : mixed.parameters()) {
    const auto& alike = p.options.dtype ? wide : narrow;
    const std::size_t element = p.options.dtype ? 4 : 2;
    EXPECT_EQ(std::memcmp(got.data() + at, alike.data() + p.offset * element, p.count * element), 0) << p.name;
    at += p.count * element;
  }
  EXPECT_EQ(at, got.size());
}

TEST(MixedDTypes, GrowAndShrinkWithLivingRanks) {
  const ParameterSet set = odd({1, 1023, 1, 1500, 2049, 7}, DType::kF32, 1, false);
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const AnyJob job = pulling(set, options_of(stage, DType::kBF16));
    const StretchResult reference = run_stretch(job, {1, 5, "", ""});
    std::vector<std::unique_ptr<ThreadPool>> pools;
    std::vector<std::unique_ptr<Engine>> engines;
    for (int r = 0; r < 5; ++r) {
      pools.push_back(std::make_unique<ThreadPool>(1));
      engines.push_back(std::make_unique<Engine>(job.parameters, job.optimizer(), job.options, *pools.back()));
    }
    int before = 0;
    std::uint64_t generation = 9000;
    Engine::Digests digests;
    std::vector<std::byte> parameters;
    for (const int world : {2, 5, 3, 1, 4}) {
      run_ranks(std::max(before, world), ++generation, [&](int r, Communicator& comm) {
        const EntryResult entry = engines[r]->enter(comm, world, nullptr);
        if (before == 0) return;
        EXPECT_EQ(entry.source, EntryResult::Source::kLivingRanks);
      });
      run_ranks(world, ++generation, [&](int r, Communicator& comm) {
        engines[r]->attach(comm);
        engines[r]->run_step([&](Step& step) { job.step(step, engines[r]->parameters()); });
        engines[r]->settle();
        const auto here = engines[r]->digests();
        auto whole = engines[r]->gather_parameters();
        if (r == 0) {
          digests = here;
          parameters = std::move(whole);
        }
        comm.barrier();
        engines[r]->detach();
      });
      before = world;
    }
    EXPECT_EQ(digests.parameters, reference.after.parameters);
    EXPECT_EQ(digests.optimizer, reference.after.optimizer);
    EXPECT_EQ(parameters, reference.parameters);
  }
}

TEST(MixedDTypes, MayBeChangedBetweenRunsAsPrecisionMay) {
  const TemporaryDirectory directory;
  const std::vector<std::int64_t> sizes = {3, 8, 24};
  const StretchResult saved = run_stretch(pulling(odd(sizes, DType::kF32, 1, true), options_of(2, DType::kBF16)),
                                          {2, 1, "", directory.string()});
  const StretchResult loaded =
      run_stretch(pulling(odd(sizes, DType::kF32, 1, true), options_of(2, DType::kF32)), {3, 0, saved.saved, ""});
  EXPECT_EQ(loaded.before.parameters, saved.after.parameters);
}

TEST(MixedDTypes, AViewOfTheWrongTypeIsRefusedByName) {
  ParameterSet set;
  const UnitId unit = set.add_unit("block"), none;
  set.add(unit, "block.weight", {4});
  set.add(unit, "block.norm", {4}, {.dtype = DType::kF32});
  const UnitId other = set.add_unit("head");
  set.add(other, "head.weight", {4});
  const auto said = [&](const std::function<void(const UnitUse&)>& look) -> std::string {
    AnyJob job = pulling(set, options_of(1, DType::kBF16));
    job.step = [&](Step& step, const ParameterSet&) {
      for (MicroBatch& batch : step) look(batch.forward(unit));
    };
    try {
      run_stretch(job, {1, 1, "", ""});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  const ParamId weight{0}, norm{1}, head{2};
  EXPECT_THAT(said([&](const UnitUse& use) { use.param<float>(weight); }),
              HasSubstr("'block.weight' is bf16 in compute, but was asked for as f32"));
  EXPECT_THAT(said([&](const UnitUse& use) { use.param<bf16>(norm); }),
              HasSubstr("'block.norm' is f32 in compute, but was asked for as bf16"));
  EXPECT_THAT(
      said([&](const UnitUse& use) { use.params(); }),
      AllOf(HasSubstr("unit 'block'"), HasSubstr("'block.weight' bf16, 'block.norm' f32"), HasSubstr("param<T>")));
  EXPECT_THAT(said([&](const UnitUse& use) { use.param<bf16>(head); }), HasSubstr("it is in unit 'head'"));
}

TEST(MixedDTypes, AreInTheMemoryPlan) {
  ParameterSet set;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "block" + std::to_string(i);
    const UnitId unit = set.add_unit(name);
    set.add(unit, name + ".weight", {30'001});
    set.add(unit, name + ".norm", {20'000}, {.dtype = DType::kF32});
  }
  for (int stage = 0; stage <= 3; ++stage)
    for (const int world : {1, 3}) {
      const EngineOptions options = options_of(stage, DType::kBF16);
      run_ranks(world, 1, [&](int rank, Communicator& comm) {
        const auto plan = plan_memory(set, options, 2, world, rank);
        const double whole = 4 * (30'001 * 2 + 20'000 * 4);
        if (stage < 3) {
          EXPECT_NEAR(static_cast<double>(plan[0].bytes), whole, 64);
        }
        ThreadPool pool(1);
        Engine engine(set, make_adamw(), options, pool);
        engine.enter(comm, world, nullptr);
        engine.attach(comm);
        const auto real = engine.memory();
        for (std::size_t i = 0; i < plan.size(); ++i)
          EXPECT_NEAR(static_cast<double>(real[i].bytes), static_cast<double>(plan[i].bytes),
                      0.05 * static_cast<double>(plan[i].bytes) + 256)
              << plan[i].name << " " << at(stage, world);
        comm.barrier();
        engine.detach();
      });
    }
}

}  // namespace
}  // namespace bellows::test

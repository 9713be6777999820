#include "bellows/elastic/session.h"

#include <filesystem>
#include <chrono>
#include <cstdlib>

#include "bellows/base/error.h"
#include "bellows/base/fault.h"
#include "bellows/base/log.h"
#include "bellows/base/mutex.h"
#include "metrics.h"
#include "peak.h"

namespace bellows {
namespace {

// A rank waits for its next membership for as long as the job exists; the coordinator decides when that is over.
constexpr double kMembershipPatience_s = 24 * 3600;

std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

std::string describe(EntryResult::Source source) {
  switch (source) {
    case EntryResult::Source::kInitial: return "initial";
    case EntryResult::Source::kLivingRanks: return "living ranks";
    case EntryResult::Source::kCheckpoint: return "checkpoint";
  }
  return "?";
}

}  // namespace

struct Session::Impl {
  Impl(std::unique_ptr<Member> m, int threads, double window, FaultPlan plan)
      : member(std::move(m)), pool(threads), window_s(window), faults(std::move(plan)) {}

  std::unique_ptr<Member> member;
  ThreadPool pool;
  const double window_s;
  FaultPlan faults;

  /// The communicator that another thread may have to abort, and its generation.
  Mutex mutex;
  Communicator* live BELLOWS_GUARDED_BY(mutex) = nullptr;
  std::uint64_t live_generation BELLOWS_GUARDED_BY(mutex) = 0;
};

namespace {

/// One call of Session::train: the state machine between memberships.
class Training {
 public:
  Training(Session::Impl& session, ParameterSet parameters, std::unique_ptr<Optimizer> optimizer,
           const TrainOptions& options, const std::function<void(Step&)>& step_function, const TrainHooks& hooks)
      : session_(session), member_(*session.member), options_(options), step_function_(step_function), hooks_(hooks),
        engine_(std::move(parameters), std::move(optimizer), options.engine, session.pool),
        windows_(session.window_s) {
    if (!options_.checkpoint.empty()) checkpointer_.emplace(options_.checkpoint, options_.keep);
    engine_.set_probe([this](const char* phase) {
      // Inside a step its number is the one being computed; after the commit it has that number already.
      const std::int64_t step = engine_.step() + (std::string_view(phase) == "gather" ||
                                                  std::string_view(phase) == "checkpoint" ? 0 : 1);
      session_.faults.fire(world_.rank, step, phase, generation_);
    });
  }
  ~Training() {
    member_.on_abort(nullptr);
    drop();
  }

  TrainResult run() {
    member_.join({engine_.fingerprint() + ";model=" + engine_.parameters().fingerprint(), options_.engine.lanes});
    member_.on_abort([this](std::uint64_t generation, const std::string& why) {
      MutexLock lock(session_.mutex);
      if (session_.live && session_.live_generation == generation) session_.live->abort(why);
    });
    std::exception_ptr failure;
    for (;;) {
      const auto membership = member_.await_membership(generation_, Deadline::after(kMembershipPatience_s));
      if (!membership) {
        if (failure) std::rethrow_exception(failure);
        return released();
      }
      failure = nullptr;
      try {
        if (!enter(*membership)) return released();
        if (auto result = train()) return *result;
      } catch (const CommError& error) {
        log::warn("{}", error.what());
        failure = std::current_exception();
        member_.report_failure(generation_, error.ranks(), error.what());
      }
      drop();
    }
  }

 private:
  // ---- Generations ----

  /// Brings this rank into `membership`; false if it was only there to hand over.
  bool enter(const Membership& membership) {
    const AccountScope scope(engine_.accounts(), Account::kReconfiguration);
    generation_ = membership.generation;
    const auto transition = membership.transition_world_of(member_.id());
    const auto world = membership.world_of(member_.id());
    if (!transition) throw UserError("membership " + std::to_string(generation_) + " does not hold this rank");
    world_ = world.value_or(*transition);
    CommOptions comm_options;
    comm_options.transport = options_.transport;
    comm_options.algorithm = options_.algorithm;
    comm_options.bind = options_.bind;
    comm_options.timeout_s = options_.collective_timeout_s;
    auto comm = connect(*transition, member_.bootstrap(), comm_options);
    watch(comm.get());
    const EntryResult entry = engine_.enter(*comm, membership.world_size(), [&] { return checkpoint_to_load(); });
    if (!membership.leaving.empty()) {
      watch(nullptr);
      comm.reset();
      if (world) {
        comm = connect(*world, member_.bootstrap(), comm_options);
        watch(comm.get());
      }
    }
    if (!world) return false;
    comm_ = std::move(comm);
    engine_.attach(*comm_);
    if (world_.rank == 0)
      log::debug("generation {}: {} ranks, step {} from {} {}", generation_, world_.world_size, entry.step,
                 describe(entry.source), entry.detail);

    peak_flops_ = world_peak(*comm_, rank_peak(world_, options_.engine.precision, session_.pool.threads()));
    if (world_.rank == 0) {
      if (before_generation_ == 0 && hooks_.on_start) hooks_.on_start(engine_, world_);
      const bool first = generation_ == 1 || before_generation_ == 0;
      metrics_.open(options_.metrics, first && entry.source == EntryResult::Source::kInitial);
      if (entry.source == EntryResult::Source::kCheckpoint)
        log::info("continuing from {} at step {}", entry.detail, entry.step);
      else if (options_.resume == "auto" && first && entry.source == EntryResult::Source::kInitial)
        log::info("no checkpoint in '{}': starting from step 0", options_.checkpoint);
      if (before_generation_ > 0) {
        change_ = MetricsWriter::WorldChange{0, generation_, trained_world_size_, world_.world_size, membership.planned,
                                             membership.reason, describe(entry.source), entry.bytes_moved,
                                             entry.bytes_minimum, 0};
        change_decided_unix_ms_ = membership.decided_unix_ms;
      }
      const auto cut = windows_.start_generation(generation_, world_.world_size, options_.flops_per_token, peak_flops_);
      if (cut) member_.report(*cut);
    }
    before_generation_ = generation_;
    trained_world_size_ = world_.world_size;
    return true;
  }

  /// Rank 0's answer to "nobody has enough state": the newest complete checkpoint of this job, else what the user asked to
  /// resume from. An explicit path that holds nothing is an error, never a silent fresh start.
  std::optional<std::string> checkpoint_to_load() {
    const bool job_has_own = before_generation_ > 0 || options_.resume == "auto";
    if (checkpointer_ && job_has_own) {
      if (auto newest = CheckpointReader::newest(checkpointer_->directory())) return newest.value().path();
    }
    if (options_.resume.empty() || options_.resume == "auto") return std::nullopt;
    if (std::filesystem::exists(std::filesystem::path(options_.resume) / "manifest.json")) {
      auto reader = CheckpointReader::open(options_.resume);
      if (!reader) throw UserError("cannot resume: " + reader.error());
      if (auto sound = reader.value().verify(); !sound) throw UserError("cannot resume: " + sound.error());
      return options_.resume;
    }
    auto newest = CheckpointReader::newest(options_.resume);
    if (!newest) throw UserError("cannot resume from '" + options_.resume + "': " + newest.error());
    return newest.value().path();
  }

  /// Lets the abort callback reach `comm` from now on; null: there is none.
  void watch(Communicator* comm) {
    MutexLock lock(session_.mutex);
    session_.live = comm;
    session_.live_generation = generation_;
  }

  void drop() {
    watch(nullptr);
    engine_.detach();
    comm_.reset();
  }

  TrainResult released() {
    drop();
    member_.leave(false);
    TrainResult result;
    result.end = TrainResult::End::kReleased;
    result.steps = engine_.step();
    return result;
  }

  // ---- Steps ----

  /// Steps until the end (a result) or until a newer generation is due (nothing).
  std::optional<TrainResult> train() {
    bool stop = false;
    std::uint64_t newest = generation_;
    while (engine_.step() < options_.steps && !stop && newest <= generation_) {
      const StepResult result =
          engine_.run_step(step_function_, member_.stop_requested(), member_.newest_generation());
      record(result);
      stop = result.stop;
      newest = result.newest_generation;
      if (due(result.step, options_.eval_every) && result.step < options_.steps) evaluate();
      if (due(result.step, options_.checkpoint_every) && result.step < options_.steps) save();
    }
    if (engine_.step() < options_.steps && !stop) {
      engine_.settle();
      return std::nullopt;
    }
    return finish(stop);
  }

  void record(const StepResult& result) {
    // Every rank reads its own accounts; only rank 0 writes them down.
    const auto sums = engine_.accounts().read();
    StepRecord record;
    record.result = result;
    record.world_size = world_.world_size;
    record.generation = generation_;
    Nanos wall = 0;
    for (int a = 0; a < kAccounts; ++a) {
      record.accounts[a] = sums[a] - recorded_[a];
      wall += record.accounts[a];
    }
    recorded_ = sums;
    record.step_ms = static_cast<double>(wall) * 1e-6;
    record.tokens_per_second = static_cast<double>(result.tokens) / seconds(wall);
    if (peak_flops_ && options_.flops_per_token > 0)
      record.mfu = options_.flops_per_token * record.tokens_per_second / *peak_flops_;

    StepReport report;
    report.generation = generation_;
    report.rank = world_.rank;
    report.step = result.step;
    report.total_steps = options_.steps;
    report.loss = result.loss;
    report.tokens_per_second = record.tokens_per_second;
    report.mfu = record.mfu;
    member_.report(report);
    if (world_.rank != 0) return;

    if (change_) {
      change_->step = result.step;
      change_->ms = static_cast<double>(unix_ms() - change_decided_unix_ms_);
      metrics_.world(*change_);
      member_.report(ChangeReport{generation_, change_->from, change_->to, change_->reason, change_->bytes_moved,
                                  change_->ms});
      change_.reset();
    }
    metrics_.step(record);
    if (hooks_.on_step) hooks_.on_step(record);

    WindowStep step;
    step.step = result.step;
    step.seconds = seconds(wall - record.accounts[static_cast<int>(Account::kIdle)]);
    step.tokens = static_cast<double>(result.tokens);
    step.stalled = record.accounts[static_cast<int>(Account::kCheckpoint)] > 0;
    const auto lanes = contiguous_lanes(options_.engine.lanes, world_.world_size);   // as many per rank as strided ones
    for (int r = 0; r < world_.world_size; ++r) {
      const double held = static_cast<double>(lanes[r].size());
      step.compute_ms.push_back(result.ranks[r].compute_ms / held);
      step.data_ms.push_back(result.ranks[r].data_ms / held);
    }
    if (const auto window = windows_.add(step)) member_.report(*window);
  }

  void evaluate() {
    if (!hooks_.evaluate) return;
    const auto loss = engine_.evaluate(hooks_.evaluate, options_.eval_batches);
    if (!loss) return;
    evaluation_ = loss;
    if (world_.rank != 0) return;
    metrics_.evaluation(engine_.step(), *loss);
    if (hooks_.on_evaluation) hooks_.on_evaluation(engine_.step(), *loss);
  }

  void save() {
    if (!checkpointer_) return;
    const auto saved = engine_.save(*checkpointer_, "");
    if (saved)
      checkpoint_ = saved.value();
    else if (world_.rank == 0)
      log::error("checkpoint of step {} failed: {}; training goes on", engine_.step(), saved.error());
  }

  TrainResult finish(bool stopped) {
    if (options_.evaluate_at_end || due(engine_.step(), options_.eval_every)) evaluate();
    save();
    TrainResult result;
    result.end = stopped ? TrainResult::End::kStopped : TrainResult::End::kFinished;
    result.steps = engine_.step();
    result.rank = world_.rank;
    result.evaluation = evaluation_;
    result.checkpoint = checkpoint_;
    result.digests = engine_.digests();
    if (hooks_.on_finish) hooks_.on_finish(engine_);
    if (world_.rank == 0) metrics_.end(result);
    // Nobody leaves before everybody is through: a peer that is still reading would take it for a failure.
    comm_->barrier("end of training");
    member_.leave(true);
    drop();
    return result;
  }

  Session::Impl& session_;
  Member& member_;
  const TrainOptions options_;
  const std::function<void(Step&)>& step_function_;
  const TrainHooks& hooks_;
  Engine engine_;
  std::optional<Checkpointer> checkpointer_;
  std::unique_ptr<Communicator> comm_;
  World world_;
  std::uint64_t generation_ = 0;
  std::uint64_t before_generation_ = 0;      // last one that this rank trained in
  int trained_world_size_ = 0;               // and its size
  std::optional<double> peak_flops_;         // of the whole world
  WindowBuilder windows_;
  MetricsWriter metrics_;
  TimeAccounts::Sums recorded_{};
  std::optional<MetricsWriter::WorldChange> change_;   // told once the first step after it is committed
  std::int64_t change_decided_unix_ms_ = 0;
  std::optional<float> evaluation_;
  std::string checkpoint_;
};

}  // namespace

Session::Session(std::unique_ptr<Member> member, int threads, double window_s, std::string faults)
    : impl_(std::make_unique<Impl>(std::move(member), threads, window_s,
                                   FaultPlan::parse(faults).value_or_throw())) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

Session Session::from_environment(int threads) {
  const auto get = [](const char* name, const char* fallback) {
    const char* value = std::getenv(name);
    return std::string(value ? value : fallback);
  };
  const std::string window = get("BELLOWS_WINDOW", "300");
  char* end = nullptr;
  const double window_s = std::strtod(window.c_str(), &end);
  if (end == window.c_str() || *end != 0 || !(window_s > 0))
    throw UserError("BELLOWS_WINDOW='" + window + "' is not a positive number of seconds");
  return Session(make_member_from_environment(), threads, window_s, get("BELLOWS_FAULT", ""));
}

ThreadPool& Session::pool() { return impl_->pool; }

TrainResult Session::train(ParameterSet parameters, std::unique_ptr<Optimizer> optimizer, const TrainOptions& options,
                           const std::function<void(Step&)>& step_function, const TrainHooks& hooks) {
  return Training(*impl_, std::move(parameters), std::move(optimizer), options, step_function, hooks).run();
}

int run_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (const UserError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace bellows

#include "bellows/runtime/engine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "bellows/base/error.h"
#include "bellows/base/log.h"
#include "bellows/optimizer/clip.h"
#include "engine_impl.h"

namespace bellows {

double fold_lanes_in_order(std::span<const double> by_lane) {
  std::vector<std::pair<LaneSpan, double>> stack;
  for (std::size_t lane = 0; lane < by_lane.size(); ++lane) {
    stack.push_back({{static_cast<int>(lane), 1}, by_lane[lane]});
    while (stack.size() > 1 && lane_siblings(stack[stack.size() - 2].first, stack.back().first)) {
      auto& left = stack[stack.size() - 2];
      left.first.count += stack.back().first.count;
      left.second += stack.back().second;
      stack.pop_back();
    }
  }
  while (stack.size() > 1) {
    stack[stack.size() - 2].second += stack.back().second;
    stack.pop_back();
  }
  return stack.empty() ? 0.0 : stack[0].second;
}

namespace {

Gradients::Options gradient_options(const EngineOptions& options) {
  const Stage stage = Stage::of(options.stage);
  return {stage.shards_gradients, !stage.shards_optimizer, options.micro_batches_per_lane, options.bucket_bytes};
}

EngineOptions checked(EngineOptions options) {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw UserError(what);
  };
  require(options.stage >= 0 && options.stage <= 3, "stage " + std::to_string(options.stage) + " is not 0, 1, 2 or 3");
  require(options.precision == DType::kF32 || options.precision == DType::kBF16,
          "precision " + std::string(name_of(options.precision)) + " is not f32 or bf16");
  require(options.lanes >= 1, "lanes must be at least 1, not " + std::to_string(options.lanes));
  require(options.micro_batch >= 1, "micro_batch must be at least 1, not " + std::to_string(options.micro_batch));
  require(options.micro_batches_per_lane >= 1, "micro_batches_per_lane must be at least 1");
  require(options.bucket_bytes >= 4096, "buckets must have at least 4 KiB, not " + std::to_string(options.bucket_bytes));
  require(options.prefetch_units >= 0, "prefetch_units must not be negative");
  return options;
}

double milliseconds(Nanos ns) { return static_cast<double>(ns) * 1e-6; }

}  // namespace

UpdatePlan::UpdatePlan(const ParameterSet& parameters, const ChunkTable& table, const Places& places)
    : stretches(table.size()) {
  std::size_t chunk = 0;
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const Parameter& p = parameters.parameters()[i];
    if (p.options.frozen || p.count == 0) continue;
    UpdateRule rule;
    if (const ParameterGroup* group = parameters.group(p.options.group)) {
      rule.learning_rate_scale = group->learning_rate_scale;
      rule.weight_decay = group->weight_decay;
      rule.frozen_from_step = group->frozen_from_step;
    }
    rule.decay = p.options.decay;
    rule.dtype = places.parameters()[i].dtype;
    const auto known = std::find(rules.begin(), rules.end(), rule);
    const int number = static_cast<int>(known - rules.begin());
    if (known == rules.end()) rules.push_back(rule);

    const std::size_t begin = parameters.unit(p.unit).begin + p.offset, end = begin + p.count;
    while (chunk < table.size() && table[chunk].end <= begin) ++chunk;
    for (std::size_t c = chunk; c < table.size() && table[c].begin < end; ++c) {
      const std::size_t from = std::max(begin, table[c].begin) - table[c].begin;
      const std::size_t to = std::min(end, table[c].end) - table[c].begin;
      auto& list = stretches[c];
      if (!list.empty() && list.back().end == from && list.back().rule == number)
        list.back().end = to;
      else
        list.push_back({from, to, number});
    }
  }
}

Engine::Impl::Impl(ParameterSet parameter_set, std::unique_ptr<Optimizer> opt, EngineOptions engine_options,
                   ThreadPool& thread_pool)
    : parameters(std::move(parameter_set)), optimizer(std::move(opt)), options(checked(std::move(engine_options))),
      pool(thread_pool), table(parameters), stage(Stage::of(options.stage)), waiter(accounts),
      state(parameters, table, *optimizer, stage, options.precision),
      gradients(parameters, table, gradient_options(options), pool, waiter),
      gather(state, options.prefetch_units, waiter), plan(parameters, table, state.places()) {
  gradients.on_reduce([this] { fire("reduce"); });
}

Engine::Engine(ParameterSet parameters, std::unique_ptr<Optimizer> optimizer, EngineOptions options, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(optimizer), std::move(options), pool)) {}
Engine::~Engine() = default;

const ParameterSet& Engine::parameters() const { return impl_->parameters; }
const EngineOptions& Engine::options() const { return impl_->options; }
TimeAccounts& Engine::accounts() { return impl_->accounts; }
bool Engine::has_state() const { return impl_->has_state; }
std::int64_t Engine::step() const { return impl_->step; }
std::int64_t Engine::updates() const { return impl_->updates; }
void Engine::set_probe(std::function<void(const char*)> probe) { impl_->probe = std::move(probe); }

std::string Engine::fingerprint() const {
  const EngineOptions& o = impl_->options;
  const std::string settings = impl_->parameters.settings_fingerprint();
  return "precision=" + std::string(name_of(o.precision)) + ";lanes=" + std::to_string(o.lanes) +
         ";micro_batch=" + std::to_string(o.micro_batch) +
         ";micro_batches_per_lane=" + std::to_string(o.micro_batches_per_lane) + ";seed=" + std::to_string(o.seed) +
         ";clip=" + std::to_string(o.clip_norm) + ";schedule=" + o.schedule.fingerprint() +
         ";optimizer=" + impl_->optimizer->fingerprint() + ";" + (settings.empty() ? "" : "groups=" + settings + ";") +
         o.job_fingerprint;
}

// ---- Generations ----

void Engine::attach(Communicator& comm) {
  Impl& s = *impl_;
  BELLOWS_CHECK(s.has_state);
  BELLOWS_CHECK_EQ(s.layout.world_size(), comm.world().world_size);
  s.comm = &comm;
  s.waiter.use(&comm);
  s.gradients.attach(comm, s.layout, s.options.lanes);
  s.gather.attach(comm, s.layout);
  if (!s.state.parameters_current()) {
    s.gather.after_update();
    s.gather.settle();
  }
}

void Engine::settle() { impl_->gather.settle(); }

void Engine::detach() noexcept {
  Impl& s = *impl_;
  s.gradients.detach();
  s.gather.detach();
  s.waiter.use(nullptr);
  s.comm = nullptr;
}

// ---- One micro-batch after another ----

void Engine::Impl::start(bool evaluate, std::int64_t first) {
  BELLOWS_CHECK(comm != nullptr);
  evaluating = evaluate;
  first_sample = first;
  events.clear();
  position = -1;
  positions = static_cast<int>(gradients.plan().lanes[comm->world().rank].size()) * options.micro_batches_per_lane;
  backward_uses.assign(parameters.units().size(), 0);
  lane_loss.assign(options.lanes, 0.0);
  lane_tokens.assign(options.lanes, 0.0);
  pending_error = nullptr;
  non_finite = {};
  gradients.start_step();
}

bool Engine::Impl::next(Engine* self) {
  if (position >= 0) finish_micro_batch();
  if (++position >= positions) return false;
  const int m = options.micro_batches_per_lane;
  const int round = position / m;
  batch.engine_ = self;
  batch.step_ = step;
  batch.lane_ = gradients.plan().lanes[comm->world().rank][round];
  batch.index_ = position % m;
  const std::int64_t begin =
      first_sample + (static_cast<std::int64_t>(batch.lane_) * m + batch.index_) * options.micro_batch;
  batch.samples_.resize(options.micro_batch);
  for (int i = 0; i < options.micro_batch; ++i) batch.samples_[i] = begin + i;
  if (batch.index_ == 0 && !evaluating) gradients.start_lane(round);
  std::fill(backward_uses.begin(), backward_uses.end(), 0);
  recording = position == 0;
  reported = false;
  gather.start_micro_batch();
  return true;
}

void Engine::Impl::finish_micro_batch() {
  if (pending_error) std::rethrow_exception(pending_error);
  if (!reported) throw UserError("the step function did not report the loss of a micro-batch: call batch.report(loss_sum, tokens)");
  if (evaluating) return;
  for (std::size_t u = 0; u < backward_uses.size(); ++u)
    if (backward_uses[u] != parameters.units()[u].backward_uses)
      throw UserError("unit '" + parameters.units()[u].name + "' had " + std::to_string(backward_uses[u]) +
                      " backward scopes in a micro-batch instead of " +
                      std::to_string(parameters.units()[u].backward_uses));
}

// Rounds in which this rank has no lane: its peers still gather from it and reduce to it, so it goes through the same
// collectives in the same order, which it saw in its own first micro-batch.
void Engine::Impl::idle_rounds() {
  const LanePlan& plan = gradients.plan();
  if (!plan.in_rounds) return;
  const AccountScope idle(accounts, Account::kIdle);
  const int m = options.micro_batches_per_lane;
  for (int round = positions / m; round < plan.rounds; ++round) {
    if (!evaluating) gradients.start_lane(round);
    for (int index = 0; index < m; ++index) {
      std::fill(backward_uses.begin(), backward_uses.end(), 0);
      gather.start_micro_batch();
      for (const Event& event : events) {
        if (event.enter) {
          gather.acquire(event.unit, evaluating);
          if (event.backward) gradients.open(event.unit);
          continue;
        }
        gather.release(event.unit);
        if (event.backward && ++backward_uses[event.unit] == parameters.units()[event.unit].backward_uses &&
            index + 1 == m)
          gradients.complete(event.unit, true);
      }
    }
  }
}

UnitUse Engine::Impl::enter_unit(Engine* self, int unit, bool backward) {
  if (pending_error) std::rethrow_exception(pending_error);
  if (evaluating && backward) throw UserError("backward scope in an evaluation");
  fire(backward ? "backward" : "forward");
  if (recording) events.push_back({unit, backward, true});
  UnitUse use;
  use.engine_ = self;
  use.parameters_ = &parameters;
  use.unit_ = &parameters.units()[unit];
  use.unit_index_ = unit;
  use.places_ = state.places().parameters().data();
  use.mixed_ = state.places().mixed(unit);
  use.backward_ = backward;
  use.params_ = gather.acquire(unit, evaluating);
  if (backward) {
    use.grads_ = gradients.open(unit);
    use.accumulate_ = batch.index_ > 0 || backward_uses[unit] > 0;
  }
  return use;
}

void Engine::Impl::exit_unit(int unit, bool backward) noexcept {
  try {
    if (recording) events.push_back({unit, backward, false});
    gather.release(unit);
    if (backward && std::uncaught_exceptions() == 0) complete_gradient(unit);
  } catch (...) {
    if (!pending_error) pending_error = std::current_exception();
  }
}

void Engine::Impl::complete_gradient(int unit) {
  ++backward_uses[unit];
  if (backward_uses[unit] != parameters.units()[unit].backward_uses) return;
  if (batch.index_ + 1 != options.micro_batches_per_lane) return;
  watch_for_non_finite(unit, gradients.open(unit));
  gradients.complete(unit, false);
}

// The sums show that something is not finite, but not where it came from: so every lane's gradient is looked at while it
// is in the cache. One compare per element, no branches.
void Engine::Impl::watch_for_non_finite(int unit, const float* grads) {
  constexpr std::size_t kElements = std::size_t{1} << 16;
  const std::size_t count = parameters.units()[unit].count;
  std::atomic<bool> bad{false};
  pool.run((count + kElements - 1) / kElements, [&](std::size_t task) {
    const std::size_t begin = task * kElements, end = std::min(begin + kElements, count);
    std::uint32_t any = 0;
    for (std::size_t i = begin; i < end; ++i)
      any |= (std::bit_cast<std::uint32_t>(grads[i]) & 0x7f800000u) == 0x7f800000u;
    if (any) bad.store(true, std::memory_order_relaxed);
  });
  if (!bad) return;
  for (const ParamId id : parameters.units()[unit].parameters) {
    const Parameter& p = parameters.parameter(id);
    const ParameterGroup* const group = parameters.group(p.options.group);
    const bool frozen = p.options.frozen || (group && group->frozen_from_step && step >= *group->frozen_from_step);
    if (frozen) continue;   // nothing is made of its gradient
    for (const float g : std::span(grads + p.offset, p.count)) {
      if (std::isfinite(g)) continue;
      if (non_finite.count == 0)
        non_finite.where = "rank " + std::to_string(comm->world().rank) + ", lane " + std::to_string(batch.lane_) +
                           ", parameter '" + p.name + "'";
      ++non_finite.count;
    }
  }
}

void Engine::Impl::run(const std::function<void(Step&)>& function, Engine* self) {
  Step step_view;
  step_view.engine_ = self;
  step_view.index_ = step;
  step_view.evaluating_ = evaluating;
  function(step_view);
  if (pending_error) std::rethrow_exception(pending_error);
  if (position < positions)
    throw UserError("the step function left " + std::to_string(positions - std::max(position, 0)) + " of " +
                    std::to_string(positions) + " micro-batches undone; loop over all of `for (MicroBatch& b : step)`");
  idle_rounds();
}

// ---- A step ----

StepResult Engine::run_step(const std::function<void(Step&)>& step_function, bool stop,
                            std::uint64_t newest_generation) {
  Impl& s = *impl_;
  const AccountScope compute(s.accounts, Account::kCompute);
  const auto before = s.accounts.read();
  s.start(false, s.step * s.options.global_batch());
  s.run(step_function, this);
  s.gradients.finish();
  const StepResult result = s.commit(stop, newest_generation);
  const auto after = s.accounts.read();
  const auto spent = [&](Account a) { return milliseconds(after[static_cast<int>(a)] - before[static_cast<int>(a)]); };
  s.last_compute_ms = spent(Account::kCompute);
  s.last_data_ms = spent(Account::kDataWait);
  return result;
}

// The transaction. Slots with one writer each travel in one all-reduce; until it is through, nothing durable has changed.
StepResult Engine::Impl::commit(bool stop, std::uint64_t newest_generation) {
  const World& world = comm->world();
  const std::size_t lanes = options.lanes, chunks = table.size(), ranks = world.world_size;
  std::vector<double> agreed(2 * lanes + chunks + 5 * ranks, 0.0);
  const auto loss = std::span(agreed).subspan(0, lanes), tokens = std::span(agreed).subspan(lanes, lanes);
  const auto norm = std::span(agreed).subspan(2 * lanes, chunks);
  const auto per_rank = [&](std::size_t field) {
    return std::span(agreed).subspan(2 * lanes + chunks + field * ranks, ranks);
  };
  std::copy(lane_loss.begin(), lane_loss.end(), loss.begin());
  std::copy(lane_tokens.begin(), lane_tokens.end(), tokens.begin());
  {
    const AccountScope scope(accounts, Account::kOptimizer);
    const std::vector<int> own = layout.owned(world.rank);
    std::vector<std::uint64_t> bad(own.size(), 0);
    pool.run(own.size(), [&](std::size_t i) {
      const auto sum = gradients.sum(own[i]);
      double squares = 0;
      for (const Stretch& part : plan.stretches[own[i]]) {
        if (plan.rules[part.rule].frozen(step)) continue;
        squares += sum_of_squares(sum.subspan(part.begin, part.end - part.begin), &bad[i]);
      }
      norm[own[i]] = squares;
    });
    for (const std::uint64_t count : bad) non_finite.count += static_cast<std::int64_t>(count);
  }
  per_rank(0)[world.rank] = static_cast<double>(non_finite.count);
  per_rank(1)[world.rank] = stop ? 1 : 0;
  per_rank(2)[world.rank] = static_cast<double>(newest_generation);
  per_rank(3)[world.rank] = last_compute_ms;
  per_rank(4)[world.rank] = last_data_ms;
  // A NaN in a slot would still be one writer's NaN after the sum, but Inf * 0 is not at stake: slots are only added.
  fire("commit");
  waiter.charged([&] { comm->all_reduce_sum(agreed, "commit"); });

  StepResult result;
  double bad = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    bad += per_rank(0)[r];
    result.stop = result.stop || per_rank(1)[r] > 0;
    result.newest_generation = std::max(result.newest_generation, static_cast<std::uint64_t>(per_rank(2)[r]));
    result.ranks.push_back({per_rank(3)[r], per_rank(4)[r]});
  }
  const double total_tokens = fold_lanes_in_order(tokens);
  const double total_loss = fold_lanes_in_order(loss);
  result.tokens = static_cast<std::int64_t>(total_tokens);
  result.loss = total_tokens > 0 ? static_cast<float>(total_loss / total_tokens) : 0.0f;
  result.grad_norm = total_tokens > 0 ? std::sqrt(fold_sums(norm)) / total_tokens : 0.0;
  result.learning_rate = options.schedule.at(updates);
  const bool finite = bad == 0 && std::isfinite(result.grad_norm) && std::isfinite(total_loss);
  result.skipped = !finite || total_tokens == 0;
  if (result.skipped) {
    std::string where;
    const std::string mine = non_finite.where;
    waiter.charged([&] {
      for (const std::string& text : comm->all_gather_blobs(mine, "where gradients are not finite"))
        if (where.empty()) where = text;
    });
    ++step;
    ++skipped_in_a_row;
    result.step = step;
    if (world.rank == 0)
      log::warn("step {} skipped: {}{}; parameters and optimizer state are unchanged ({} in a row)", step,
                total_tokens == 0 ? "no valid token in the global batch" : "the gradient is not finite",
                where.empty() ? "" : " (" + where + ")", skipped_in_a_row);
    if (skipped_in_a_row >= options.max_skipped_in_a_row)
      throw UserError("gave up after " + std::to_string(skipped_in_a_row) + " skipped steps in a row; last at step " +
                      std::to_string(step) + (where.empty() ? "" : ": " + where) +
                      "; lower the learning rate or look at the data");
    return result;
  }
  skipped_in_a_row = 0;
  result.clip_coefficient = clip_coefficient(result.grad_norm, options.clip_norm);
  gather.before_update();
  update(result, total_tokens);
  ++step;
  ++updates;
  result.step = step;
  fire("gather");
  gather.after_update();
  return result;
}

void Engine::Impl::update(const StepResult& result, double tokens) {
  const AccountScope scope(accounts, Account::kOptimizer);
  if (stage.shards_optimizer && !stage.shards_parameters && comm->world().world_size > 1)
    state.set_parameters_current(false);
  std::vector<Hyper> hypers;
  for (const UpdateRule& rule : plan.rules) {
    Hyper hyper;
    hyper.learning_rate = static_cast<float>(static_cast<double>(result.learning_rate) * rule.learning_rate_scale);
    hyper.weight_decay = !rule.decay ? 0.0f
                         : rule.weight_decay ? static_cast<float>(*rule.weight_decay)
                                             : optimizer->weight_decay();
    hyper.grad_scale = static_cast<float>(static_cast<double>(result.clip_coefficient) / tokens);
    hyper.step = updates + 1;
    hypers.push_back(hyper);
  }
  const Places& places = state.places();
  const auto& own = state.shard().chunks();
  pool.run(own.size(), [&](std::size_t i) {
    const int chunk = own[i];
    const auto sum = gradients.sum(chunk);
    std::byte* const compute = state.compute(chunk);
    for (const Stretch& part : plan.stretches[chunk]) {
      const UpdateRule& rule = plan.rules[part.rule];
      if (rule.frozen(step)) continue;
      const std::size_t n = part.end - part.begin;
      Slice slice;
      slice.params = state.values(0, chunk).subspan(part.begin, n);
      slice.grads = sum.subspan(part.begin, n);
      for (int kind = 1; kind < state.kinds(); ++kind)
        slice.state[kind - 1] = state.values(kind, chunk).subspan(part.begin, n);
      std::byte* const at = compute ? compute + places.within_chunk(chunk, table[chunk].begin + part.begin) : nullptr;
      if (at && rule.dtype == DType::kBF16) slice.low = {reinterpret_cast<bf16*>(at), n};
      optimizer->update(slice, hypers[part.rule]);
      if (at && rule.dtype == DType::kF32) std::memcpy(at, slice.params.data(), n * sizeof(float));
    }
  });
}

std::optional<float> Engine::evaluate(const std::function<void(Step&)>& step_function, int batches) {
  Impl& s = *impl_;
  const AccountScope scope(s.accounts, Account::kIdle);
  const std::size_t lanes = s.options.lanes;
  std::vector<double> sums(2 * lanes * batches, 0.0);
  for (int b = 0; b < batches; ++b) {
    s.start(true, b * s.options.global_batch());
    s.run(step_function, this);
    std::copy(s.lane_loss.begin(), s.lane_loss.end(), sums.begin() + 2 * lanes * b);
    std::copy(s.lane_tokens.begin(), s.lane_tokens.end(), sums.begin() + 2 * lanes * b + lanes);
  }
  s.waiter.charged([&] { s.comm->all_reduce_sum(sums, "evaluation"); });
  double loss = 0, tokens = 0;
  for (int b = 0; b < batches; ++b) {
    loss += fold_lanes_in_order(std::span(sums).subspan(2 * lanes * b, lanes));
    tokens += fold_lanes_in_order(std::span(sums).subspan(2 * lanes * b + lanes, lanes));
  }
  if (tokens == 0) return std::nullopt;
  return static_cast<float>(loss / tokens);
}

std::vector<MemoryLine> Engine::memory() const {
  const auto state = impl_->state.bytes();
  const auto gradients = impl_->gradients.bytes();
  return {{"parameters", state.parameters},
          {"master weights", state.master},
          {"optimizer state", state.optimizer},
          {"gradients", gradients.buffers + gradients.accumulators},
          {"reduction buckets", gradients.slots},
          {"gathered units", impl_->gather.slot_bytes()}};
}

// ---- What the trainer holds ----

Step::Iterator Step::begin() { return ++Iterator(this); }
MicroBatch& Step::Iterator::operator*() const { return step_->engine_->impl_->batch; }
Step::Iterator& Step::Iterator::operator++() {
  if (step_ && !step_->engine_->impl_->next(step_->engine_)) step_ = nullptr;
  return *this;
}
bool Step::Iterator::operator!=(std::nullptr_t) const { return step_ != nullptr; }

UnitUse MicroBatch::forward(UnitId unit) { return engine_->impl_->enter_unit(engine_, unit.index, false); }
UnitUse MicroBatch::backward(UnitId unit) { return engine_->impl_->enter_unit(engine_, unit.index, true); }
void MicroBatch::report(double loss_sum, std::int64_t tokens) {
  engine_->impl_->lane_loss[lane_] += loss_sum;
  engine_->impl_->lane_tokens[lane_] += static_cast<double>(tokens);
  engine_->impl_->reported = true;
}
AccountScope MicroBatch::data_wait() {
  {
    const AccountScope waiting(engine_->impl_->accounts, Account::kDataWait);   // a slow source is slow here too
    engine_->impl_->fire("data");
  }
  return AccountScope(engine_->impl_->accounts, Account::kDataWait);
}

UnitUse::UnitUse(UnitUse&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)), parameters_(other.parameters_), places_(other.places_),
      unit_(other.unit_), unit_index_(other.unit_index_), mixed_(other.mixed_), backward_(other.backward_),
      accumulate_(other.accumulate_), params_(other.params_), grads_(other.grads_) {}
UnitUse::~UnitUse() {
  if (engine_) engine_->impl_->exit_unit(unit_index_, backward_);
}
void UnitUse::refuse_params() const {
  std::string types;
  for (const ParamId id : unit_->parameters)
    types += (types.empty() ? "'" : ", '") + parameters_->parameter(id).name + "' " + std::string(name_of(dtype(id)));
  throw UserError("unit '" + unit_->name + "' has parameters of several dtypes in compute (" + types +
                  "), so no array of all of them; ask for one after another: use.param<T>(id)");
}
void UnitUse::refuse_param(ParamId id, DType wanted) const {
  const Parameter& p = parameters_->parameter(id);
  if (p.unit.index != unit_index_)
    throw UserError("parameter '" + p.name + "' was asked for in a scope of unit '" + unit_->name +
                    "'; it is in unit '" + parameters_->unit(p.unit).name + "'");
  throw UserError("parameter '" + p.name + "' is " + std::string(name_of(dtype(id))) +
                  " in compute, but was asked for as " + std::string(name_of(wanted)));
}
void UnitUse::zero_grads_if_new() {
  if (accumulate_) return;
  std::memset(grads_, 0, unit_->count * sizeof(float));
  accumulate_ = true;
}

}  // namespace bellows

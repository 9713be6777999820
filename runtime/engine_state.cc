// The whole state at once: digests, gathered parameters, checkpoints.

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/base/digest.h"
#include "bellows/base/error.h"
#include "engine_impl.h"

namespace bellows {
namespace {

// Brings one kind of array to rank 0, unit by unit in canonical order, and hands each unit to `take` there.
void stream_to_rank_0(ModelState& state, const ShardLayout& layout, Communicator& comm, int kind,
                      const std::function<void(std::span<const std::byte>)>& take) {
  const ChunkTable& table = state.table();
  const int ranks = comm.world().world_size, me = comm.world().rank;
  for (int u = 0; u < table.units(); ++u) {
    const Interval chunks = table.of_unit(u);
    if (chunks.begin == chunks.end) continue;
    std::vector<std::vector<std::byte>> outgoing(ranks), incoming(ranks);
    for (std::size_t c = chunks.begin; c < chunks.end; ++c) {
      const int owner = layout.owner(c);
      if (owner == me) {
        const auto bytes = std::as_bytes(state.values(kind, static_cast<int>(c)));
        outgoing[0].insert(outgoing[0].end(), bytes.begin(), bytes.end());
      }
      if (me == 0) incoming[owner].resize(incoming[owner].size() + table[c].size() * sizeof(float));
    }
    if (ranks > 1)
      comm.all_to_all_v({outgoing.begin(), outgoing.end()}, {incoming.begin(), incoming.end()}, "digest");
    else
      incoming = std::move(outgoing);
    if (me != 0) continue;
    std::vector<std::size_t> at(ranks, 0);
    for (std::size_t c = chunks.begin; c < chunks.end; ++c) {
      const int owner = layout.owner(c);
      const std::size_t bytes = table[c].size() * sizeof(float);
      take({incoming[owner].data() + at[owner], bytes});
      at[owner] += bytes;
    }
  }
}

}  // namespace

Engine::Digests Engine::digests() {
  Impl& s = *impl_;
  BELLOWS_CHECK(s.comm != nullptr);
  Digest parameters, optimizer;
  for (int kind = 0; kind < s.state.kinds(); ++kind) {
    Digest& digest = kind == 0 ? parameters : optimizer;
    stream_to_rank_0(s.state, s.layout, *s.comm, kind, [&](auto bytes) { digest.update(bytes); });
  }
  std::uint64_t values[2] = {parameters.value(), optimizer.value()};
  s.comm->broadcast(std::as_writable_bytes(std::span(values)), 0, "digest");
  return {hex64(values[0]), hex64(values[1])};
}

std::vector<std::byte> Engine::gather_parameters() {
  Impl& s = *impl_;
  BELLOWS_CHECK(s.comm != nullptr);
  std::vector<std::byte> whole;
  if (s.comm->world().rank == 0) whole.reserve(s.state.places().total_bytes());
  s.gather.start_micro_batch();
  for (std::size_t u = 0; u < s.parameters.units().size(); ++u) {
    const Unit& unit = s.parameters.units()[u];
    const void* data = s.gather.acquire(static_cast<int>(u), true);
    if (s.comm->world().rank == 0)
      for (const ParamId id : unit.parameters) {
        const ParameterPlace place = s.state.places().parameters()[id.index];
        const auto* const from = static_cast<const std::byte*>(data) + place.offset;
        whole.insert(whole.end(), from, from + s.parameters.parameter(id).count * size_of(place.dtype));
      }
    s.gather.release(static_cast<int>(u));
  }
  return whole;
}

// Which sample comes next and in which order sums are taken: going on with other values would repeat or leave out data.
// What a person may change on purpose between two runs (learning rate, clipping, precision, stage) is not in it.
std::string Engine::Impl::later_numbers() const {
  return "seed=" + std::to_string(options.seed) + ";lanes=" + std::to_string(options.lanes) +
         ";micro_batch=" + std::to_string(options.micro_batch) +
         ";micro_batches_per_lane=" + std::to_string(options.micro_batches_per_lane) + ";" + options.job_fingerprint;
}

CheckpointMeta Engine::Impl::checkpoint_meta(const std::string& extra) const {
  CheckpointMeta meta;
  meta.step = step;
  meta.model_fingerprint = parameters.fingerprint();
  meta.job_fingerprint = later_numbers();
  meta.optimizer = optimizer->name();
  meta.kinds = state.kind_names();
  meta.groups = parameters.groups();
  for (const Parameter& p : parameters.parameters())
    if (!p.options.group.empty()) meta.group_of[p.name] = p.options.group;
  meta.extra = nlohmann::json{{"updates", updates}, {"skipped_in_a_row", skipped_in_a_row}, {"trainer", extra}}.dump();
  return meta;
}

// Groups meet by name: their order is nobody's business. Who is in none has none on either side.
void Engine::Impl::check_groups(const CheckpointReader& reader) const {
  if (options.accept_changed_groups) return;
  const auto refuse = [&](const std::string& who, const std::string& theirs, const std::string& ours) {
    throw UserError("checkpoint " + reader.path() + " has " + who + " " + theirs + ", this job has it " + ours +
                    "; declare it as the checkpoint has it, or set accept_changed_groups to go on with this job's");
  };
  std::map<std::string, std::pair<std::string, std::string>> settings;  // by name: theirs, ours
  for (const ParameterGroup& group : reader.meta().groups) settings[group.name].first = "with " + describe(group);
  for (const ParameterGroup& group : parameters.groups()) settings[group.name].second = "with " + describe(group);
  for (auto& [name, both] : settings) {
    for (std::string* side : {&both.first, &both.second})
      if (side->empty()) *side = "not at all";
    if (both.first != both.second) refuse("the parameter group '" + name + "'", both.first, both.second);
  }
  for (const Parameter& p : parameters.parameters()) {
    const auto found = reader.meta().group_of.find(p.name);
    const std::string theirs = found == reader.meta().group_of.end() ? "" : found->second;
    const auto in = [](const std::string& group) {
      return group.empty() ? "in no group" : "in the group '" + group + "'";
    };
    if (theirs != p.options.group) refuse("the parameter '" + p.name + "'", in(theirs), in(p.options.group));
  }
}

Result<std::string> Engine::save(Checkpointer& checkpointer, const std::string& extra) {
  Impl& s = *impl_;
  BELLOWS_CHECK(s.comm != nullptr);
  const AccountScope scope(s.accounts, Account::kCheckpoint);
  s.fire("checkpoint");
  // Every chunk is written by its owner; neighbouring chunks lie side by side in a shard, so they make one piece.
  std::vector<CheckpointPiece> pieces;
  const std::vector<int> own = s.layout.owned(s.comm->world().rank);
  for (int kind = 0; kind < s.state.kinds(); ++kind) {
    for (std::size_t i = 0; i < own.size();) {
      std::size_t end = i + 1;
      while (end < own.size() && own[end] == own[end - 1] + 1) ++end;
      const Interval range{s.table[own[i]].begin, s.table[own[end - 1]].end};
      pieces.push_back({kind, range, {s.state.values(kind, own[i]).data(), range.size()}});
      i = end;
    }
  }
  return checkpointer.save(*s.comm, s.checkpoint_meta(extra), s.parameters, pieces);
}

void Engine::Impl::load(const CheckpointReader& reader) {
  const CheckpointMeta& meta = reader.meta();
  const auto must_equal = [&](const std::string& what, const std::string& theirs, const std::string& ours) {
    if (theirs != ours)
      throw UserError("checkpoint " + reader.path() + " is of another " + what + ": it has '" + theirs +
                      "', this job has '" + ours + "'");
  };
  must_equal("model", meta.model_fingerprint, parameters.fingerprint());
  must_equal("optimizer", meta.optimizer, optimizer->name());
  must_equal("job", meta.job_fingerprint, later_numbers());
  if (meta.kinds != state.kind_names())
    throw UserError("checkpoint " + reader.path() + " holds other optimizer arrays than this job's");
  check_groups(reader);
  const auto& own = state.shard().chunks();
  for (int kind = 0; kind < state.kinds(); ++kind) {
    for (std::size_t i = 0; i < own.size();) {
      std::size_t end = i + 1;
      while (end < own.size() && own[end] == own[end - 1] + 1) ++end;
      const Interval range{table[own[i]].begin, table[own[end - 1]].end};
      const auto read = reader.read(kind, range, {state.values(kind, own[i]).data(), range.size()});
      if (!read) throw UserError(read.error());
      i = end;
    }
  }
  const auto extra = nlohmann::json::parse(meta.extra, nullptr, false);
  if (extra.is_discarded() || !extra.contains("updates"))
    throw UserError("checkpoint " + reader.path() + " lacks the number of updates in its manifest");
  step = meta.step;
  updates = extra["updates"].get<std::int64_t>();
  skipped_in_a_row = extra.value("skipped_in_a_row", 0);
  state.refresh_compute(pool);
  // The same on every rank, also where one of them happens to own the whole of a small model: attach() gathers or not.
  state.set_parameters_current(stage.shards_parameters || !stage.shards_optimizer || layout.world_size() == 1);
}

}  // namespace bellows

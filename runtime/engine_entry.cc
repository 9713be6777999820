// The start of a generation: ranks with and without state agree on one and bring it into the new layout.

#include <algorithm>
#include <set>
#include <sstream>

#include "bellows/base/error.h"
#include "bellows/base/log.h"
#include "engine_impl.h"
#include "reshard.h"

namespace bellows {
namespace {

/// What a rank tells the others when a generation starts. Text: a few numbers and the layout, spaces between.
struct Introduction {
  bool has_state = false;
  std::int64_t step = 0;
  std::int64_t updates = 0;
  int skipped_in_a_row = 0;
  int rank = -1;                   // under `layout`
  bool parameters_current = false;
  ShardLayout layout;

  std::string encode() const {
    std::ostringstream out;
    out << has_state << ' ' << step << ' ' << updates << ' ' << skipped_in_a_row << ' ' << rank << ' '
        << parameters_current;
    if (has_state) out << ' ' << layout.encode();
    return out.str();
  }
  static Introduction decode(const std::string& text) {
    Introduction result;
    std::istringstream in(text);
    in >> result.has_state >> result.step >> result.updates >> result.skipped_in_a_row >> result.rank >>
        result.parameters_current;
    if (result.has_state) {
      std::string layout;
      std::getline(in, layout, '\0');
      result.layout = ShardLayout::decode(layout);
    }
    return result;
  }
};

// The layout that moves the least, seen from the state that most is kept of: that of the lowest rank which has it.
ShardLayout next_layout(const ChunkTable& table, const std::vector<Introduction>& ranks,
                        const std::vector<Holding>& holdings, int members) {
  const auto reference =
      std::find_if(holdings.begin(), holdings.end(), [](const Holding& h) { return h.usable; }) - holdings.begin();
  if (reference == static_cast<std::ptrdiff_t>(holdings.size())) return ShardLayout(table, members);
  const ShardLayout& before = holdings[reference].layout;
  std::vector<int> new_rank(before.world_size(), -1);
  for (int r = 0; r < members; ++r)
    if (holdings[r].usable && holdings[r].layout == before) new_rank[ranks[r].rank] = r;
  return before.for_world(table, new_rank, members);
}

// Rank 0 has looked for a checkpoint; everybody must be able to read the same one, or nobody starts.
std::optional<std::string> agree_on_path(Communicator& comm, const std::function<std::optional<std::string>()>& find) {
  std::string mine;
  if (comm.world().rank == 0) {
    try {
      const auto path = find ? find() : std::nullopt;
      mine = path ? "+" + *path : "-";
    } catch (const UserError& error) {
      mine = std::string("!") + error.what();
    }
  }
  const std::string found = comm.all_gather_blobs(mine, "choosing a checkpoint")[0];
  if (found[0] == '!') throw UserError(found.substr(1));
  if (found[0] == '-') return std::nullopt;
  return found.substr(1);
}

void agree_on_success(Communicator& comm, const std::string& error) {
  for (const std::string& text : comm.all_gather_blobs(error, "loading a checkpoint"))
    if (!text.empty()) throw UserError(text);
}

}  // namespace

EntryResult Engine::enter(Communicator& transition, int members,
                          const std::function<std::optional<std::string>()>& fallback) {
  Impl& s = *impl_;
  const int me = transition.world().rank;
  if (members > s.options.lanes)
    throw UserError("more ranks than lanes: " + std::to_string(members) + " ranks share " +
                    std::to_string(s.options.lanes) + " lanes; start at most " + std::to_string(s.options.lanes) +
                    " ranks or give the job more lanes");

  Introduction mine{s.has_state, s.step, s.updates, s.skipped_in_a_row, s.layout_rank, s.state.parameters_current(),
                    s.layout};
  std::vector<Introduction> ranks;
  for (const std::string& text : transition.all_gather_blobs(mine.encode(), "entering a generation"))
    ranks.push_back(Introduction::decode(text));

  EntryResult result;
  std::set<std::int64_t, std::greater<>> steps;
  for (const Introduction& rank : ranks)
    if (rank.has_state) steps.insert(rank.step);
  std::string missing;
  for (const std::int64_t step : steps) {
    std::vector<Holding> holdings;
    for (const Introduction& rank : ranks)
      holdings.push_back({rank.has_state && rank.step == step, rank.layout, rank.rank, rank.parameters_current});
    const ShardLayout to = next_layout(s.table, ranks, holdings, members);
    const StateTransfer transfer = plan_transfer(s.state, holdings, to);
    if (!transfer.covered) {
      if (missing.empty()) missing = "step " + std::to_string(step) + ": " + transfer.missing;
      continue;
    }
    carry_out(s.state, transfer, holdings, to, transition, s.pool);
    const auto source = std::find_if(ranks.begin(), ranks.end(),
                                     [&](const Introduction& r) { return r.has_state && r.step == step; });
    s.step = step;
    s.updates = source->updates;
    s.skipped_in_a_row = source->skipped_in_a_row;
    s.has_state = me < members;
    s.layout = to;
    s.layout_rank = me < members ? me : -1;
    result.source = EntryResult::Source::kLivingRanks;
    result.step = step;
    result.bytes_moved = transfer.bytes_moved;
    result.bytes_minimum = transfer.bytes_minimum;
    return result;
  }

  // Nobody has enough: from a checkpoint, or from the seed.
  const std::optional<std::string> path = agree_on_path(transition, fallback);
  result.source = path ? EntryResult::Source::kCheckpoint : EntryResult::Source::kInitial;
  s.has_state = false;
  s.layout = ShardLayout(s.table, members);
  s.layout_rank = me < members ? me : -1;
  std::string error;
  if (me < members) {
    s.state.allocate(s.layout, me);
    if (path) {
      auto reader = CheckpointReader::open(*path);
      try {
        if (!reader) throw UserError(reader.error());
        s.load(reader.value());
      } catch (const UserError& failure) {
        error = failure.what();
      }
    } else {
      s.state.initialise(s.options.seed, s.pool);
      s.step = s.updates = 0;
      s.skipped_in_a_row = 0;
    }
  }
  agree_on_success(transition, error);
  s.has_state = me < members;
  result.step = s.step;
  result.detail = path ? *path : "seed " + std::to_string(s.options.seed);
  if (!missing.empty()) result.detail += " (living ranks have not enough of " + missing + ")";
  return result;
}

}  // namespace bellows

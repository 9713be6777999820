#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace bellows {

enum class CostedCall { kReduceScatter, kAllGather, kAllReduce };

/// What messages between two ranks cost.
struct LinkCosts {
  double message_s = 0;     ///< handling it: half of it keeps the sender busy, half the receiver
  double delay_s = 0;       ///< on its way, which keeps nobody busy
  double byte_s = 0;        ///< of a message that is received where it is wanted
  double added_byte_s = 0;  ///< of one that is added up where it stands; less if the sender's memory can be read there
  bool operator==(const LinkCosts&) const = default;
};

/// How far the model was off in a call that was measured, among ranks of one host.
struct ModelError {
  CostedCall call = CostedCall::kAllGather;  ///< never kAllReduce, which is the two others
  std::string algorithm;
  int ranks = 0;
  std::size_t bytes = 0;  ///< of the whole vector
  double factor = 1;      ///< measured over predicted
  bool operator==(const ModelError&) const = default;
};

/// What collectives by messages are made of, in seconds: measured by `bellows bench collectives --calibrate`.
struct CollectiveCosts {
  LinkCosts near;     ///< between ranks of one host
  LinkCosts far;      ///< between hosts; all ranks of a host share its way out and its way in
  double add_s = 0;   ///< per byte of every partial sum that goes into an addition
  double copy_s = 0;  ///< per byte packed into a message
  double wake_s = 0;  ///< until a rank that has no core of its own gets one, per message that it waits for in turn
  double beyond_cache = 1;         ///< bytes of vectors of 16 MiB and more cost so many times those of 1 MiB and less
  std::vector<ModelError> errors;  ///< of calls that were measured; they correct what is predicted for ones like them
  bool operator==(const CollectiveCosts&) const = default;
};

/// Figures of the kind of wire that `transport` uses, for hosts that have not been measured.
CollectiveCosts built_in_costs(const std::string& transport);
/// $XDG_CACHE_HOME/bellows/collectives.json, or that in ~/.cache; empty if there is neither.
std::string default_calibration_path();
/// The costs stored for this host and transport. Nothing if there is no such file, or none of them in it; throws
/// UserError, naming the file, if it is not one of costs.
std::optional<CollectiveCosts> load_costs(const std::string& path, const std::string& transport);
/// Keeps what the file says of other hosts and transports; a reader sees the old file or the new one.
void store_costs(const std::string& path, const std::string& transport, const CollectiveCosts& costs);
/// One line without loss, and back; throws UserError for what is none.
std::string encode(const CollectiveCosts& costs);
CollectiveCosts decode_costs(const std::string& line);

/// Where ranks stand (host of each, from 0) and how many share a core (1 if each has one).
struct CostedWorld {
  std::vector<int> host;
  double ranks_per_core = 1;
};
/// The algorithms that can serve such a world. `distinct`: without those whose messages are those of one before them.
std::vector<std::string> fitting_algorithms(const CostedWorld& world, bool distinct = false);
/// Seconds that a call takes on a vector of `bytes`, rank r bringing lane r and owning an even part.
double predicted_seconds(CostedCall call, const std::string& algorithm, std::size_t bytes, const CostedWorld& world,
                         const CollectiveCosts& costs);
/// What "auto" takes where ranks exchange messages.
std::string cheapest_algorithm(CostedCall call, std::size_t bytes, const CostedWorld& world,
                               const CollectiveCosts& costs);

}  // namespace bellows

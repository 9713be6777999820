#include "bellows/comm/costs.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/base/error.h"

namespace bellows {

NLOHMANN_JSON_SERIALIZE_ENUM(CostedCall, {{CostedCall::kReduceScatter, "reduce_scatter"},
                                          {CostedCall::kAllGather, "all_gather"},
                                          {CostedCall::kAllReduce, "all_reduce"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkCosts, message_s, delay_s, byte_s, added_byte_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ModelError, call, algorithm, ranks, bytes, factor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveCosts, near, far, add_s, copy_s, wake_s, beyond_cache, errors)

namespace {

std::string this_host() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

nlohmann::json read(const std::string& path) {
  std::ifstream in(path);
  if (!in) return nullptr;
  return nlohmann::json::parse(in);
}

}  // namespace

// Shared memory, adding, copying and waking: measured by calibration on two cores of a Zen 4 server
// (docs/collectives.md). Sockets of one host and links between hosts are estimates, 3 GB/s and 10 Gbit/s, until a
// calibration replaces them.
CollectiveCosts built_in_costs(const std::string& transport) {
  constexpr LinkCosts kShared = {2.8e-6, 0, 0.49e-10, 0.15e-10}, kSockets = {25e-6, 0, 3.5e-10, 3.5e-10},
                      kEthernet = {10e-6, 20e-6, 9e-10, 9e-10};
  CollectiveCosts costs;
  costs.near = transport == "ucx" || transport == "mpi" ? kSockets : kShared;
  costs.far = kEthernet;
  costs.add_s = 0.37e-10;
  costs.copy_s = 0.41e-10;
  costs.wake_s = 4e-6;
  return costs;
}

std::string default_calibration_path() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
    return std::string(cache) + "/bellows/collectives.json";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/bellows/collectives.json";
  return {};
}

// {"hosts": {"<name>": {"<transport>": {"near": {...}, "far": {...}, "add_s": ...}}}}
std::optional<CollectiveCosts> load_costs(const std::string& path, const std::string& transport) {
  if (path.empty()) return std::nullopt;
  try {
    const nlohmann::json all = read(path);
    if (all.is_null()) return std::nullopt;
    const nlohmann::json& hosts = all.at("hosts");
    if (!hosts.is_object()) throw UserError("'hosts' is no object");
    const auto host = hosts.find(this_host());
    if (host == hosts.end() || !host->contains(transport)) return std::nullopt;
    return host->at(transport).get<CollectiveCosts>();
  } catch (const std::exception& error) {
    throw UserError("'" + path + "' does not hold costs of collectives (" + error.what() +
                    "); remove it, or write it anew with bellows bench collectives --calibrate");
  }
}

void store_costs(const std::string& path, const std::string& transport, const CollectiveCosts& costs) {
  namespace fs = std::filesystem;
  if (path.empty())
    throw UserError("there is no place for a calibration file: set HOME or XDG_CACHE_HOME, or name one");
  nlohmann::json all;
  try {
    all = read(path);
    if (all.is_object() && !all["hosts"].is_object()) all = nullptr;
  } catch (const nlohmann::json::exception&) {
    // What cannot be read is written anew.
  }
  if (!all.is_object()) all = {{"hosts", nlohmann::json::object()}};
  all["hosts"][this_host()][transport] = costs;
  if (fs::path(path).has_parent_path()) fs::create_directories(fs::path(path).parent_path());
  const std::string fresh = path + "." + std::to_string(getpid());
  std::ofstream out(fresh);
  if (!(out << all.dump(2) << '\n').flush()) throw UserError("cannot write '" + fresh + "'");
  out.close();
  fs::rename(fresh, path);
}

std::string encode(const CollectiveCosts& costs) { return nlohmann::json(costs).dump(); }

CollectiveCosts decode_costs(const std::string& line) {
  try {
    return nlohmann::json::parse(line).get<CollectiveCosts>();
  } catch (const nlohmann::json::exception& error) {
    throw UserError("'" + line + "' are no costs of collectives: " + error.what());
  }
}

}  // namespace bellows

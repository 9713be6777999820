// The recorded form; its grammar is in docs/topology.md. Strict: an unknown key, a wrong type or a number out of range
// is a failure that says where it stands.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bellows/base/error.h"
#include "bellows/comm/topology.h"

namespace bellows {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "bellows-topology";
constexpr int kVersion = 1;
constexpr std::size_t kLargestFile = std::size_t{64} << 20;
constexpr std::size_t kMostHosts = 4096, kMostRanks = 65536, kMostNodes = 1024, kMostCores = 65536, kMostGpus = 64,
                      kMostNics = 256, kLongestText = 1024;
constexpr double kMostLinks = 1024, kMostNumber = 9007199254740992.0;  // 2^53: exact in every JSON reader

/// What is wrong with a text, thrown inside this file only.
struct Wrong {
  std::string what;
};

/// A value in the text and where it stands there.
class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  [[noreturn]] void wrong(const std::string& what) const { throw Wrong{(path_.empty() ? "" : path_ + ": ") + what}; }

  /// An object that has no keys but these.
  void keys(const std::vector<std::string>& known) const {
    if (!json_.is_object()) wrong("expected an object, found " + shown());
    for (const auto& [key, value] : json_.items())
      if (std::find(known.begin(), known.end(), key) == known.end()) wrong("unknown key '" + key.substr(0, 40) + "'");
  }
  bool has(const std::string& key) const { return json_.is_object() && json_.contains(key); }
  Reader at(const std::string& key) const {
    if (!has(key)) wrong("'" + key + "' is missing");
    return Reader(json_.at(key), path_.empty() ? key : path_ + "." + key);
  }
  std::string text(const std::string& otherwise = "") const {
    if (json_.is_null()) return otherwise;
    if (!json_.is_string()) wrong("expected a text, found " + shown());
    std::string text = json_.get<std::string>();
    if (text.size() > kLongestText) wrong("a text of " + std::to_string(text.size()) + " bytes is too long");
    // It will be printed on terminals.
    if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }))
      wrong("control characters in a text");
    return text;
  }
  double number(double low, double high) const {
    const double value = json_.is_number() ? json_.get<double>() : std::nan("");
    if (!(value >= low && value <= high))
      wrong("expected a number from " + plain(low) + " to " + plain(high) + ", found " + shown());
    return value;
  }
  std::int64_t integer(double low, double high) const {
    if (!json_.is_number_integer())
      wrong("expected a whole number from " + plain(low) + " to " + plain(high) + ", found " + shown());
    return static_cast<std::int64_t>(number(low, high));
  }
  bool boolean() const {
    if (!json_.is_boolean()) wrong("expected true or false, found " + shown());
    return json_.get<bool>();
  }
  CpuSet cpus() const {
    auto set = parse_cpu_list(text());
    if (!set) wrong(set.error());
    return set.value();
  }
  template <class T>
  std::vector<T> list(std::size_t most, const std::function<T(const Reader&)>& read) const {
    if (!json_.is_array()) wrong("expected a list, found " + shown());
    if (json_.size() > most)
      wrong("a list of " + std::to_string(json_.size()) + " is too long, at most " + std::to_string(most));
    std::vector<T> all;
    for (std::size_t i = 0; i < json_.size(); ++i)
      all.push_back(read(Reader(json_[i], path_ + "[" + std::to_string(i) + "]")));
    return all;
  }

 private:
  static std::string plain(double number) {
    std::ostringstream out;
    out.precision(17);
    out << number;
    return out.str();
  }
  std::string shown() const {
    std::string text = json_.is_structured() ? (json_.is_array() ? "a list" : "an object")
                                             : json_.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 40 ? text.substr(0, 40) + "..." : text;
  }

  const Json& json_;
  const std::string path_;
};

// ---- To JSON ----

Json json_of(const PciPlace& place) {
  return {{"pci", place.address}, {"path", place.path}, {"numa_node", place.numa_node}};
}

Json json_of(const HostTopology& host) {
  Json json = {{"name", host.name}, {"machine", host.machine}, {"identity", host.identity}};
  json["numa_nodes"] = Json::array();
  for (const NumaNode& node : host.numa_nodes) {
    Json cores = Json::array();
    for (const CpuSet& core : node.cores) cores.push_back(cpu_list(core));
    json["numa_nodes"].push_back(
        {{"id", node.id}, {"package", node.package}, {"memory_bytes", node.memory_bytes}, {"cores", cores}});
  }
  json["gpus"] = Json::array();
  for (const Gpu& gpu : host.gpus) {
    Json one = {{"name", gpu.name}, {"uuid", gpu.uuid}};
    one.update(json_of(gpu.place));
    json["gpus"].push_back(one);
  }
  json["nvlinks"] = host.nvlinks;
  json["nics"] = Json::array();
  for (const Nic& nic : host.nics) {
    Json one = {
        {"name", nic.name}, {"interface", nic.interface}, {"rdma", nic.rdma}, {"up", nic.up}, {"gbps", nic.gbps}};
    one.update(json_of(nic.place));
    json["nics"].push_back(one);
  }
  return json;
}

// ---- From JSON ----

PciPlace read_place(const Reader& in) {
  return {in.at("pci").text(), in.at("path").text(), static_cast<int>(in.at("numa_node").integer(-1, kMostNodes))};
}

NumaNode read_node(const Reader& in) {
  in.keys({"id", "package", "memory_bytes", "cores"});
  NumaNode node;
  node.id = static_cast<int>(in.at("id").integer(0, kMostNodes));
  node.package = static_cast<int>(in.at("package").integer(0, kMostNodes));
  node.memory_bytes = static_cast<std::uint64_t>(in.at("memory_bytes").integer(0, kMostNumber));
  node.cores = in.at("cores").list<CpuSet>(kMostCores, [](const Reader& core) {
    CpuSet cpus = core.cpus();
    if (cpus.empty()) core.wrong("a core without processors");
    return cpus;
  });
  return node;
}

Gpu read_gpu(const Reader& in) {
  in.keys({"name", "uuid", "pci", "path", "numa_node"});
  return {in.at("name").text(), in.at("uuid").text(), read_place(in)};
}

Nic read_nic(const Reader& in) {
  in.keys({"name", "interface", "rdma", "up", "gbps", "pci", "path", "numa_node"});
  return {in.at("name").text(),    in.at("interface").text(), read_place(in),
          in.at("rdma").boolean(), in.at("up").boolean(),     in.at("gbps").number(0, 1e6)};
}

void check_nodes(const Reader& in, const HostTopology& host) {
  std::set<int> ids, cpus;
  for (const NumaNode& node : host.numa_nodes) {
    if (!ids.insert(node.id).second) in.wrong("NUMA node " + std::to_string(node.id) + " stands twice");
    for (const CpuSet& core : node.cores)
      for (const int cpu : core)
        if (!cpus.insert(cpu).second) in.wrong("processor " + std::to_string(cpu) + " is in two cores");
  }
  if (cpus.empty()) in.wrong("a host without processors");
}

void check_links(const Reader& in, const HostTopology& host) {
  const auto& links = host.nvlinks;
  if (links.empty()) return;
  const std::string expected = "expected one row and column for each of " + std::to_string(host.gpus.size()) + " GPUs";
  if (links.size() != host.gpus.size()) in.wrong(expected);
  for (std::size_t a = 0; a < links.size(); ++a) {
    if (links[a].size() != links.size()) in.wrong(expected);
    if (links[a][a] != 0) in.wrong("GPU " + std::to_string(a) + " has links to itself");
    for (std::size_t b = 0; b < a; ++b)
      if (links[b].size() == links.size() && links[a][b] != links[b][a])
        in.wrong("GPUs " + std::to_string(b) + " and " + std::to_string(a) + " do not agree on their links");
  }
}

HostTopology read_host_json(const Reader& in) {
  in.keys({"name", "machine", "identity", "numa_nodes", "gpus", "nvlinks", "nics"});
  HostTopology host;
  host.name = in.at("name").text();
  host.machine = in.at("machine").text();
  host.identity = in.at("identity").text();
  host.numa_nodes = in.at("numa_nodes").list<NumaNode>(kMostNodes, read_node);
  check_nodes(in.at("numa_nodes"), host);
  host.gpus = in.at("gpus").list<Gpu>(kMostGpus, read_gpu);
  host.nvlinks = in.at("nvlinks").list<std::vector<int>>(kMostGpus, [](const Reader& row) {
    return row.list<int>(kMostGpus, [](const Reader& one) { return static_cast<int>(one.integer(0, kMostLinks)); });
  });
  check_links(in.at("nvlinks"), host);
  host.nics = in.at("nics").list<Nic>(kMostNics, read_nic);
  return host;
}

RankPlace read_rank(const Reader& in, std::size_t hosts) {
  in.keys({"host", "slot", "allowed"});
  RankPlace place;
  place.host = static_cast<int>(in.at("host").integer(0, static_cast<double>(hosts) - 1));
  place.slot = static_cast<int>(in.at("slot").integer(0, kMostRanks));
  place.allowed = in.at("allowed").cpus();
  return place;
}

Topology read_topology(const Reader& in) {
  in.keys({"format", "version", "hosts", "ranks"});
  if (in.at("format").text() != kFormat) in.at("format").wrong(std::string("expected \"") + kFormat + "\"");
  if (in.at("version").integer(0, kMostNumber) != kVersion)
    in.at("version").wrong("this build reads version " + std::to_string(kVersion));
  Topology topology;
  topology.hosts = in.at("hosts").list<HostTopology>(kMostHosts, read_host_json);
  if (topology.hosts.empty()) in.at("hosts").wrong("at least one host is needed");
  if (!in.has("ranks")) return topology;
  const std::size_t hosts = topology.hosts.size();
  topology.ranks =
      in.at("ranks").list<RankPlace>(kMostRanks, [hosts](const Reader& rank) { return read_rank(rank, hosts); });
  std::set<std::pair<int, int>> taken;
  for (const RankPlace& place : topology.ranks)
    if (!taken.insert({place.host, place.slot}).second)
      in.at("ranks").wrong("two ranks in slot " + std::to_string(place.slot) + " of host " +
                           std::to_string(place.host));
  return topology;
}

/// Reads what `read` reads from `text`; whatever is wrong with it as one sentence.
template <class T>
Result<T> parsed(const std::string& text, const std::function<T(const Reader&)>& read) {
  try {
    if (text.size() > kLargestFile) return Result<T>::failure("too large");
    return read(Reader(Json::parse(text), ""));
  } catch (const Wrong& wrong) {
    return Result<T>::failure(wrong.what);
  } catch (const Json::exception& error) {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    return Result<T>::failure("not JSON: " + what.substr(std::min(what.size(), what.find("] ") + 2)));
  }
}

/// A rank's blob = {"host": HOST, "allowed": "0-3"}
struct Brought {
  HostTopology host;
  CpuSet allowed;
};

Result<Brought> read_blob(const std::string& blob) {
  return parsed<Brought>(blob, [](const Reader& in) {
    in.keys({"host", "allowed"});
    return Brought{read_host_json(in.at("host")), in.at("allowed").cpus()};
  });
}

}  // namespace

std::string to_json(const Topology& topology) {
  Json json = {{"format", kFormat}, {"version", kVersion}};
  json["hosts"] = Json::array();
  for (const HostTopology& host : topology.hosts) json["hosts"].push_back(json_of(host));
  json["ranks"] = Json::array();
  for (const RankPlace& place : topology.ranks)
    json["ranks"].push_back({{"host", place.host}, {"slot", place.slot}, {"allowed", cpu_list(place.allowed)}});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Topology> topology_from_json(const std::string& text) { return parsed<Topology>(text, read_topology); }

Result<Topology> load_topology(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Result<Topology>::failure("cannot open the topology file " + path);
  std::string text;
  char piece[1 << 14];
  while (text.size() <= kLargestFile && (in.read(piece, sizeof piece), in.gcount() > 0))
    text.append(piece, static_cast<std::size_t>(in.gcount()));
  if (in.bad()) return Result<Topology>::failure("cannot read the topology file " + path);
  Result<Topology> topology = topology_from_json(text);
  if (!topology) return Result<Topology>::failure("topology file " + path + ": " + topology.error());
  return topology;
}

std::string topology_blob(const HostTopology& host, const CpuSet& allowed) {
  const Json json = {{"host", json_of(host)}, {"allowed", cpu_list(allowed)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Topology make_topology(const std::vector<std::string>& blobs) {
  Topology topology;
  std::map<std::string, Brought> seen;  // ranks of a host mostly bring the same
  std::map<std::string, int> hosts;
  std::vector<int> slots;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    auto known = seen.find(blobs[rank]);
    if (known == seen.end()) {
      Result<Brought> brought = read_blob(blobs[rank]);
      if (!brought)
        throw UserError("rank " + std::to_string(rank) + " brought a topology that cannot be read: " + brought.error());
      known = seen.emplace(blobs[rank], std::move(brought.value())).first;
    }
    const auto [host, added] = hosts.try_emplace(known->second.host.identity, static_cast<int>(slots.size()));
    if (added) {
      topology.hosts.push_back(known->second.host);
      slots.push_back(0);
    }
    topology.ranks.push_back({host->second, slots[static_cast<std::size_t>(host->second)]++, known->second.allowed});
  }
  return topology;
}

}  // namespace bellows

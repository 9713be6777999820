#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "bellows/base/error.h"
#include "bellows/comm/bootstrap.h"
#include "group.h"
#include "plugin.h"
#include "plugin_mpi.h"

namespace bellows {
namespace {

constexpr PluginName kPlugin = {"libbellows_mpi.so", "bellows_mpi_plugin", "this build has no MPI",
                                /*symbols_for_all=*/true};

/// How launchers of MPI programs tell a process its place. A pair must be there whole or not at all.
struct Launcher {
  const char* rank;
  const char* partner;
  bool partner_is_size;
};
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"PMI_RANK", "PMI_SIZE", true},
    {"PMIX_RANK", "PMIX_NAMESPACE", false},
};

/// The launcher that started this process, or null. Throws UserError if it is half there.
const Launcher* find_launcher() {
  const Launcher* found = nullptr;
  for (const Launcher& launcher : kLaunchers) {
    const bool rank = std::getenv(launcher.rank) != nullptr, partner = std::getenv(launcher.partner) != nullptr;
    if (rank != partner)
      throw UserError(std::string("the environment has ") + (rank ? launcher.rank : launcher.partner) + " but not " +
                      (rank ? launcher.partner : launcher.rank) +
                      "; unset it for a start without MPI, or start with mpirun");
    if (rank && !found) found = &launcher;
  }
  return found;
}

class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(const BellowsMpiPlugin& plugin) : plugin_(plugin) {}
  ~MpiBootstrap() override {
    // A rank that fails does not wait for its peers: mpirun sees that it ended without MPI_Finalize and ends the job.
    if (std::uncaught_exceptions() == 0) plugin_.stop();
  }

  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline deadline) override {
    const std::uint64_t size = blob.size();
    std::vector<std::uint64_t> sizes(world.world_size);
    all_gather(world, tag, &size, sizeof size, sizes.data(), deadline);
    const std::size_t longest = std::max<std::size_t>(1, *std::max_element(sizes.begin(), sizes.end()));
    std::string padded = blob, all(longest * world.world_size, '\0');
    padded.resize(longest);
    all_gather(world, tag, padded.data(), longest, all.data(), deadline);
    std::vector<std::string> blobs;
    for (int r = 0; r < world.world_size; ++r) blobs.push_back(all.substr(longest * r, sizes[r]));
    return blobs;
  }

 private:
  void all_gather(const World& world, const std::string& tag, const void* mine, std::size_t size, void* all,
                  Deadline deadline) {
    std::vector<char> arrived(world.world_size, 0);
    char error[256] = {};
    const int code = plugin_.all_gather(mine, size, all, std::max(0.0, seconds(deadline.remaining())), arrived.data(),
                                        error, sizeof error);
    if (code == 0) return;
    const std::string suffix = " (generation " + std::to_string(world.generation) + ")";
    if (code != 1)
      throw CommError(CommError::Kind::kPeerLost, "exchange " + tag, {}, world.generation,
                      "exchange " + tag + " over MPI: " + error + suffix);
    std::vector<int> missing;
    for (int r = 0; r < world.world_size; ++r)
      if (!arrived[r]) missing.push_back(r);
    throw CommError(CommError::Kind::kTimeout, "exchange " + tag, missing, world.generation,
                    "exchange " + tag + ": " + list_ranks(missing) + " did not arrive in time" + suffix);
  }

  const BellowsMpiPlugin& plugin_;
};

std::atomic<const BellowsMpiPlugin*> opened_plugin = nullptr;

}  // namespace

const BellowsMpiPlugin* started_mpi() {
  const BellowsMpiPlugin* plugin = opened_plugin;
  return plugin && plugin->started ? plugin : nullptr;
}

std::unique_ptr<Bootstrap> make_mpi_bootstrap(World* world, std::string* why) {
  std::string reason;
  std::string& reason_out = why ? *why : reason;
  const Launcher* launcher = find_launcher();
  if (!launcher) {
    reason_out = "this process was not started by mpirun";
    return nullptr;
  }
  const auto* plugin = open_plugin<BellowsMpiPlugin>(kPlugin, &reason_out);
  if (!plugin) return nullptr;
  opened_plugin = plugin;
  BellowsMpiWorld mpi;
  char error[256] = {};
  if (plugin->start(&mpi, error, sizeof error) != 0) {
    reason_out = error;
    return nullptr;
  }
  auto bootstrap = std::make_unique<MpiBootstrap>(*plugin);
  // Started by the mpirun of another MPI, every process would be a world of one without noticing.
  if (launcher->partner_is_size && std::to_string(mpi.world_size) != std::getenv(launcher->partner))
    throw UserError(std::string(launcher->partner) + "=" + std::getenv(launcher->partner) + ", but MPI finds " +
                    std::to_string(mpi.world_size) +
                    " processes; use the mpirun of the MPI that Bellows was built with");
  *world = World{mpi.rank, mpi.world_size, mpi.local_rank, mpi.local_size, 1};
  return bootstrap;
}

}  // namespace bellows

#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/base/world.h"

namespace bellows {

/// How the ranks of a new generation find each other before any transport exists: each brings a small blob and gets
/// everybody's. Implemented by the coordinator's client, by MPI (plugin), and by `InprocBootstrap`.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  /// Collective over the generation. `tag` tells successive exchanges apart. Blob of rank r is element r.
  /// Throws CommError (kTimeout, naming the missing ranks) when the deadline passes.
  virtual std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                            Deadline deadline) = 0;
};

/// Ranks as threads of one process, for tests and for embedding. Shared by all ranks of the group.
class InprocBootstrap final : public Bootstrap {
 public:
  InprocBootstrap();
  ~InprocBootstrap() override;
  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline deadline) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A world of one.
class SoloBootstrap final : public Bootstrap {
 public:
  std::vector<std::string> exchange(const World&, const std::string&, const std::string& blob, Deadline) override {
    return {blob};
  }
};

/// Bootstrap over MPI, from the plugin beside this program; null (and the reason in `*why`) where MPI was not compiled
/// in or this process was not started by mpirun. Fills `*world` (generation 1) from MPI.
std::unique_ptr<Bootstrap> make_mpi_bootstrap(World* world, std::string* why);

}  // namespace bellows

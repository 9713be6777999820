#include "routed/wire_ucx.h"

#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "bellows/base/mutex.h"
#include "plugin.h"
#include "plugins/ucx/ucx_plugin.h"

namespace bellows {
namespace {

constexpr PluginName kPlugin = {"libbellows_ucx.so", "bellows_ucx_plugin", "this build has no UCX",
                                /*symbols_for_all=*/false};

/// Puts signal handlers back: UCX takes SIGHUP, SIGSEGV and others for itself as soon as it is loaded.
class SignalsKept {
 public:
  SignalsKept() {
    for (int signal = 1; signal < kSignals; ++signal)
      known_[signal] = sigaction(signal, nullptr, &before_[signal]) == 0;
  }
  ~SignalsKept() {
    for (int signal = 1; signal < kSignals; ++signal)
      if (known_[signal]) sigaction(signal, &before_[signal], nullptr);
  }
  SignalsKept(const SignalsKept&) = delete;

 private:
  static constexpr int kSignals = 32;
  struct sigaction before_[kSignals];
  bool known_[kSignals] = {};
};

const UcxPlugin* plugin(std::string* why) {
  static Mutex mutex;
  static const UcxPlugin* loaded BELLOWS_GUARDED_BY(mutex) = nullptr;
  MutexLock lock(mutex);
  if (loaded) return loaded;
  const SignalsKept kept;
#if defined(__SANITIZE_THREAD__)
  // UCX rewrites the first instructions of mmap, which here are the sanitizer's own: the process would crash.
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", /*overwrite=*/0);
#endif
  loaded = open_plugin<UcxPlugin>(kPlugin, why);
  return loaded;
}

std::unique_ptr<Wire> make(const World& world, bool between_hosts) {
  std::string why;
  const UcxPlugin* ucx = plugin(&why);
  if (!ucx) throw std::runtime_error(why);
  return ucx->make_wire(world, between_hosts);
}

}  // namespace

bool ucx_present() {
  std::string why;
  return plugin(&why) != nullptr;
}

std::string ucx_obstacle() {
  std::string why;
  const UcxPlugin* ucx = plugin(&why);
  return ucx ? ucx->obstacle() : why;
}

std::unique_ptr<Wire> make_ucx_wire(const World& world) { return make(world, false); }
std::unique_ptr<Wire> make_ucx_wire_between_hosts(const World& world) { return make(world, true); }

}  // namespace bellows

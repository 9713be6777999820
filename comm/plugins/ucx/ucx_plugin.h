#pragma once
#include <memory>
#include <string>

#include "bellows/base/world.h"
#include "routed/wire.h"

namespace bellows {

/// What the UCX plugin offers to the program that opens it. Built from the same sources as what loads it, which refuses
/// any other version; only the plugin depends on libucp.
struct UcxPlugin {
  static constexpr int kVersion = 2;
  int version;
  /// Why UCX cannot carry messages here, in one line; empty if it can.
  std::string (*obstacle)();
  /// `between_hosts`: not through shared memory, unless the user's UCX_TLS says so. Throws std::runtime_error.
  std::unique_ptr<Wire> (*make_wire)(const World& world, bool between_hosts);
};

}  // namespace bellows

/// The one symbol that is looked up.
extern "C" const bellows::UcxPlugin* bellows_ucx_plugin();

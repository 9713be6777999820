#include "ucx_plugin.h"

#include <atomic>
#include <exception>

#include "ucx_context.h"
#include "ucx_wire.h"

namespace bellows {
namespace {

std::string obstacle() {
  static std::atomic<bool> usable = false;
  if (usable) return {};
  try {
    try_ucx();
    usable = true;
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

constexpr UcxPlugin kPlugin = {UcxPlugin::kVersion, obstacle, make_wire_over_ucx};

}  // namespace
}  // namespace bellows

extern "C" const bellows::UcxPlugin* bellows_ucx_plugin() { return &bellows::kPlugin; }

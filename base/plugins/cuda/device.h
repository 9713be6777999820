#pragma once
#include <string>
#include <vector>

#include "bellows/base/device.h"

namespace bellows {

/// All CUDA devices of the host; with none, `why` says what is missing.
std::vector<Device*> cuda_plugin_devices(std::string* why);

}  // namespace bellows

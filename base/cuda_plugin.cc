#include "bellows/base/cuda_plugin.h"

#include <dlfcn.h>

#include <filesystem>

namespace bellows {
namespace {

constexpr const char* kLibrary = "libbellows_cuda.so";

// Beside the executable first, so that an installation finds its own; then wherever the loader looks.
void* open_library(std::string* why) {
  std::error_code ignored;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto beside = executable.parent_path().parent_path() / "lib" / kLibrary;
  const bool exists = std::filesystem::exists(beside, ignored);
  void* library = dlopen(exists ? beside.c_str() : kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library) return library;
  const char* error = dlerror();
  *why = exists ? std::string("no GPU support: ") + (error ? error : "the plugin cannot be loaded")
                : "no GPU support: this build has no CUDA plugin (" + std::string(kLibrary) + ")";
  return nullptr;
}

struct Loaded {
  void* library = nullptr;
  Result<const CudaPlugin*> plugin = Result<const CudaPlugin*>::failure("not loaded");

  Loaded() {
    std::string why;
    library = open_library(&why);
    if (!library) {
      plugin = Result<const CudaPlugin*>::failure(why);
      return;
    }
    const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, "bellows_cuda_plugin"));
    const CudaPlugin* found = entry ? entry() : nullptr;
    if (!found || found->version != CudaPlugin::kVersion) {
      plugin = Result<const CudaPlugin*>::failure("no GPU support: " + std::string(kLibrary) +
                                                  " belongs to another version of Bellows");
      return;
    }
    plugin = found;
  }
};

// Never unloaded: devices live in it.
const Loaded& loaded() {
  static const Loaded once;
  return once;
}

Result<std::vector<Device*>> find_devices() {
  using Devices = Result<std::vector<Device*>>;
  if (!cuda_plugin()) return Devices::failure(cuda_plugin().error());
  std::string why;
  std::vector<Device*> devices = cuda_plugin().value()->devices(&why);
  if (devices.empty()) return Devices::failure("no GPU: " + why);
  return devices;
}

}  // namespace

const Result<const CudaPlugin*>& cuda_plugin() { return loaded().plugin; }

void* cuda_symbol(const char* name) {
  BELLOWS_CHECK(cuda_plugin().ok());
  void* symbol = dlsym(loaded().library, name);
  BELLOWS_CHECK(symbol != nullptr);
  return symbol;
}

const Result<std::vector<Device*>>& cuda_devices() {
  static const Result<std::vector<Device*>> devices = find_devices();
  return devices;
}

}  // namespace bellows

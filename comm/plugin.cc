#include "plugin.h"

#include <dlfcn.h>

#include <filesystem>

namespace bellows {
namespace {

void* open_library(const PluginName& name, std::string* why) {
  const int mode = RTLD_NOW | (name.symbols_for_all ? RTLD_GLOBAL : RTLD_LOCAL);
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::filesystem::path& path : {program / ".." / "lib" / name.library, program / name.library}) {
    if (!std::filesystem::exists(path, error)) continue;
    void* library = dlopen(path.c_str(), mode);
    if (!library) *why = dlerror();
    return library;
  }
  void* library = dlopen(name.library, mode);
  if (!library) *why = std::string(name.without) + ": " + name.library + " is not beside the program";
  return library;
}

}  // namespace

std::string other_version(const PluginName& name) {
  return std::string(name.library) + " is of another version of Bellows";
}

void* find_plugin(const PluginName& name, std::string* why) {
  void* library = open_library(name, why);
  if (!library) return nullptr;
  void* lookup = dlsym(library, name.lookup);
  if (!lookup) *why = other_version(name);
  return lookup;
}

}  // namespace bellows

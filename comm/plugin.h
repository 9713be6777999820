#pragma once
#include <string>

namespace bellows {

/// A library of Bellows' own that is opened at run time, so that one build starts on hosts with and without what it
/// needs. It exports one function that takes nothing and returns a table whose first member is its `version`.
struct PluginName {
  const char* library;   ///< "libbellows_mpi.so": beside the program as installed or built, else on the system's path
  const char* lookup;    ///< the exported function
  const char* without;   ///< for messages: "this build has no MPI"
  bool symbols_for_all;  ///< what the plugin links to opens components that look for its symbols
};

/// The function `name.lookup`, or null and the reason in `why`. A library once opened stays.
void* find_plugin(const PluginName& name, std::string* why);
std::string other_version(const PluginName& name);

/// The table of the plugin, or null and the reason in `why`.
template <class Table>
const Table* open_plugin(const PluginName& name, std::string* why) {
  using Lookup = const Table* (*)();
  const auto lookup = reinterpret_cast<Lookup>(find_plugin(name, why));
  if (!lookup) return nullptr;
  const Table* table = lookup();
  if (table && table->version == Table::kVersion) return table;
  *why = other_version(name);
  return nullptr;
}

}  // namespace bellows

#pragma once
#include <cstddef>
#include <cstdint>

// What the MPI plugin offers to the program that opens it: plain C, so that only the plugin depends on libmpi.
// Every function returns 0, or leaves a message in `error` (of `error_size` bytes) and returns something else.
extern "C" {

struct BellowsMpiWorld {
  int rank = 0;
  int world_size = 0;
  int local_rank = 0;
  int local_size = 0;
};

struct BellowsMpiPlugin {
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t version = kVersion;
  int (*start)(BellowsMpiWorld* world, char* error, std::size_t error_size);
  /// All-gathers `size` bytes of every rank into `all` (world_size * size bytes). Returns 1 if that is not over within
  /// `seconds`; `arrived` (world_size bytes) then says from whom something has come.
  int (*all_gather)(const void* mine, std::size_t size, void* all, double seconds, char* arrived, char* error,
                    std::size_t error_size);
  void (*stop)();
};

/// The one symbol that is looked up.
const BellowsMpiPlugin* bellows_mpi_plugin();
}

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
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t version = kVersion;
  int (*start)(BellowsMpiWorld* world, char* error, std::size_t error_size);
  /// All-gathers `size` bytes of every rank into `all` (world_size * size bytes). Returns 1 if that is not over within
  /// `seconds`; `arrived` (world_size bytes) then says from whom something has come.
  int (*all_gather)(const void* mine, std::size_t size, void* all, double seconds, char* arrived, char* error,
                    std::size_t error_size);
  void (*stop)();

  // Messages, for the wire. `group` stands for the ranks of one generation, given as ranks of the world that `start`
  // told; making it is collective among them. A request lives until `test` says that it is over, or `drop`.
  int (*make_group)(const int* ranks, int count, int tag, void** group, char* error, std::size_t error_size);
  void (*drop_group)(void* group);
  int (*largest_tag)();
  int (*world_rank)();
  int (*send)(void* group, int rank, int tag, const void* data, std::size_t size, void** request, char* error,
              std::size_t error_size);
  int (*receive)(void* group, int rank, int tag, void* data, std::size_t size, void** request, char* error,
                 std::size_t error_size);
  /// `done`: it is over; `size`: what a receive got.
  int (*test)(void* request, int* done, std::size_t* size, char* error, std::size_t error_size);
  void (*drop)(void* request);
  /// "Open MPI v4.1.4, serialized": what was found, and how far its calls may be made from several threads.
  const char* (*describe)();
  int started = 0;  ///< `start` has been called and has not failed
};

/// The one symbol that is looked up.
BellowsMpiPlugin* bellows_mpi_plugin();
}

#include "mpi_plugin.h"

#include <mpi.h>
#include <time.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

bool started_here = false;
MPI_Comm ranks = MPI_COMM_NULL;  // our own, so that the program's use of MPI and ours never meet

int report(int code, const char* what, char* error, std::size_t error_size) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::snprintf(error, error_size, "%s: %s", what, text);
  return 2;
}

int start(BellowsMpiWorld* world, char* error, std::size_t error_size) {
  int running = 0;
  MPI_Initialized(&running);
  if (!running) {
    int provided = 0;
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided))
      return report(code, "MPI_Init_thread", error, error_size);
    started_here = true;
  }
  if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &ranks)) return report(code, "MPI_Comm_dup", error, error_size);
  MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
  MPI_Comm_rank(ranks, &world->rank);
  MPI_Comm_size(ranks, &world->world_size);
  MPI_Comm host = MPI_COMM_NULL;
  if (const int code = MPI_Comm_split_type(ranks, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &host))
    return report(code, "MPI_Comm_split_type", error, error_size);
  MPI_Comm_rank(host, &world->local_rank);
  MPI_Comm_size(host, &world->local_size);
  MPI_Comm_free(&host);
  return 0;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Point to point rather than MPI_Allgather: after a timeout it is known who has not come.
struct Exchange {
  std::vector<char> mine, all;
  std::vector<MPI_Request> sends, receives;
};

int all_gather(const void* mine, std::size_t size, void* all, double seconds, char* arrived, char* error,
               std::size_t error_size) {
  int rank = 0, world_size = 0;
  MPI_Comm_rank(ranks, &rank);
  MPI_Comm_size(ranks, &world_size);
  auto exchange = std::make_unique<Exchange>();
  exchange->mine.assign(static_cast<const char*>(mine), static_cast<const char*>(mine) + size);
  exchange->all.resize(size * static_cast<std::size_t>(world_size));
  exchange->sends.assign(static_cast<std::size_t>(world_size), MPI_REQUEST_NULL);
  exchange->receives.assign(static_cast<std::size_t>(world_size), MPI_REQUEST_NULL);
  const int bytes = static_cast<int>(size);
  for (int r = 0; r < world_size; ++r) {
    char* const place = exchange->all.data() + size * static_cast<std::size_t>(r);
    if (const int code = MPI_Irecv(place, bytes, MPI_BYTE, r, 0, ranks, &exchange->receives[r]))
      return report(code, "MPI_Irecv", error, error_size);
    if (const int code = MPI_Isend(exchange->mine.data(), bytes, MPI_BYTE, r, 0, ranks, &exchange->sends[r]))
      return report(code, "MPI_Isend", error, error_size);
  }
  const double deadline = now() + seconds;
  for (int tries = 0;; ++tries) {
    int received = 0, sent = 0;
    if (const int code = MPI_Testall(world_size, exchange->receives.data(), &received, MPI_STATUSES_IGNORE))
      return report(code, "MPI_Testall", error, error_size);
    if (const int code = MPI_Testall(world_size, exchange->sends.data(), &sent, MPI_STATUSES_IGNORE))
      return report(code, "MPI_Testall", error, error_size);
    if (received && sent) {
      std::memcpy(all, exchange->all.data(), exchange->all.size());
      return 0;
    }
    if (now() > deadline) {
      for (int r = 0; r < world_size; ++r) {
        int done = 0;
        MPI_Test(&exchange->receives[r], &done, MPI_STATUS_IGNORE);
        arrived[r] = static_cast<char>(done);
      }
      exchange.release();  // messages may still come: their memory stays until the process ends
      return 1;
    }
    const timespec nap{0, tries < 100 ? 20'000 : 1'000'000};
    nanosleep(&nap, nullptr);
  }
}

void stop() {
  int over = 0;
  MPI_Finalized(&over);
  if (over) return;
  if (ranks != MPI_COMM_NULL) MPI_Comm_free(&ranks);
  if (started_here) MPI_Finalize();
}

const BellowsMpiPlugin plugin = {BellowsMpiPlugin::kVersion, start, all_gather, stop};

}  // namespace

extern "C" const BellowsMpiPlugin* bellows_mpi_plugin() { return &plugin; }

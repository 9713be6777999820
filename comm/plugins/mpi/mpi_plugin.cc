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
extern BellowsMpiPlugin plugin;

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
  plugin.started = 1;
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
  plugin.started = 0;
  if (ranks != MPI_COMM_NULL) MPI_Comm_free(&ranks);
  if (started_here) MPI_Finalize();
}

struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
};
struct Request {
  MPI_Request handle = MPI_REQUEST_NULL;
};

int make_group(const int* members, int count, int tag, void** made, char* error, std::size_t error_size) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm_group(ranks, &all);
  int code = MPI_Group_incl(all, count, members, &some);
  auto group = std::make_unique<Group>();
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(ranks, some, tag, &group->comm);
  MPI_Group_free(&all);
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  if (code) return report(code, "MPI_Comm_create_group", error, error_size);
  MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN);
  *made = group.release();
  return 0;
}

void drop_group(void* given) {
  auto* group = static_cast<Group*>(given);
  int over = 0;
  MPI_Finalized(&over);
  if (!over && group->comm != MPI_COMM_NULL) MPI_Comm_free(&group->comm);
  delete group;
}

int largest_tag() {
  int* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(ranks, MPI_TAG_UB, &bound, &found);
  return found ? *bound : 32767;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(ranks, &rank);
  return rank;
}

int send(void* group, int rank, int tag, const void* data, std::size_t size, void** request, char* error,
         std::size_t error_size) {
  auto made = std::make_unique<Request>();
  if (const int code =
          MPI_Isend(data, static_cast<int>(size), MPI_BYTE, rank, tag, static_cast<Group*>(group)->comm, &made->handle))
    return report(code, "MPI_Isend", error, error_size);
  *request = made.release();
  return 0;
}

int receive(void* group, int rank, int tag, void* data, std::size_t size, void** request, char* error,
            std::size_t error_size) {
  auto made = std::make_unique<Request>();
  if (const int code =
          MPI_Irecv(data, static_cast<int>(size), MPI_BYTE, rank, tag, static_cast<Group*>(group)->comm, &made->handle))
    return report(code, "MPI_Irecv", error, error_size);
  *request = made.release();
  return 0;
}

int test(void* given, int* done, std::size_t* size, char* error, std::size_t error_size) {
  auto* request = static_cast<Request*>(given);
  MPI_Status status;
  if (const int code = MPI_Test(&request->handle, done, &status)) {
    *done = 1;
    delete request;
    return report(code, "MPI_Test", error, error_size);
  }
  if (!*done) return 0;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *size = count == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(count);
  delete request;
  return 0;
}

void drop(void* given) {
  auto* request = static_cast<Request*>(given);
  int over = 0;
  MPI_Finalized(&over);
  if (!over && request->handle != MPI_REQUEST_NULL) {
    MPI_Cancel(&request->handle);
    MPI_Request_free(&request->handle);
  }
  delete request;
}

const char* describe() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING + 64];
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0, level = 0;
  MPI_Get_library_version(version, &length);
  for (char* c = version; *c; ++c)
    if (*c == ',' || *c == '\n') *c = 0;  // the name and its number; the rest is about how it was built
  MPI_Query_thread(&level);
  std::snprintf(text, sizeof text, "%s, %s", version,
                level == MPI_THREAD_MULTIPLE     ? "calls from any thread"
                : level == MPI_THREAD_SERIALIZED ? "calls from one thread at a time"
                                                 : "calls from the main thread only");
  return text;
}

BellowsMpiPlugin plugin = {BellowsMpiPlugin::kVersion,
                           start,
                           all_gather,
                           stop,
                           make_group,
                           drop_group,
                           largest_tag,
                           world_rank,
                           send,
                           receive,
                           test,
                           drop,
                           describe};

}  // namespace

extern "C" BellowsMpiPlugin* bellows_mpi_plugin() { return &plugin; }

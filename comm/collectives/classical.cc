#include <stdexcept>
#include <vector>

#include "bellows/comm/communicator.h"
#include "fold.h"

namespace bellows {
namespace {

void check_size(const char* what, const char* name, std::size_t given, std::size_t needed) {
  if (given != needed)
    throw std::invalid_argument(std::string(what) + ": " + name + " has " + std::to_string(given) + " elements, not " +
                                std::to_string(needed));
}

/// Brings chunk `rank` of everybody's input here and adds it up in lane-tree order, rank r being lane r.
template <class T>
void sum_own_chunk(Communicator& comm, std::span<const T> input, std::span<T> output, const char* what) {
  const auto [rank, world_size, local_rank, local_size, generation] = comm.world();
  std::vector<T> arrived(output.size() * world_size);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  std::vector<const std::byte*> sources;
  std::vector<LaneSpan> lanes;
  for (int r = 0; r < world_size; ++r) {
    const Interval chunk = even_chunk(input.size(), world_size, r);
    send.push_back(std::as_bytes(input.subspan(chunk.begin, chunk.size())));
    receive.push_back(std::as_writable_bytes(std::span(arrived).subspan(output.size() * r, output.size())));
    sources.push_back(receive.back().data());
    lanes.push_back({r, 1});
  }
  comm.all_to_all_v(send, receive, what);
  std::byte* result = reinterpret_cast<std::byte*>(output.data());
  run_fold(make_fold(lanes, true), dtype_of<T>(), sources.data(), &result, output.size());
}

template <class T>
void gather_chunks(Communicator& comm, std::span<const T> input, std::span<T> output, const char* what) {
  std::vector<std::span<const std::byte>> send(comm.world().world_size, std::as_bytes(input));
  std::vector<std::span<std::byte>> receive;
  for (int r = 0; r < comm.world().world_size; ++r) {
    const Interval chunk = even_chunk(output.size(), comm.world().world_size, r);
    receive.push_back(std::as_writable_bytes(output.subspan(chunk.begin, chunk.size())));
  }
  comm.all_to_all_v(send, receive, what);
}

}  // namespace

template <class T>
void all_reduce(Communicator& comm, std::span<T> data) {
  const Interval own = even_chunk(data.size(), comm.world().world_size, comm.world().rank);
  const std::span<T> chunk = data.subspan(own.begin, own.size());
  sum_own_chunk<T>(comm, data, chunk, "all_reduce");
  gather_chunks<T>(comm, chunk, data, "all_reduce");
}

template <class T>
void reduce_scatter(Communicator& comm, std::span<const T> input, std::span<T> output) {
  check_size("reduce_scatter", "output", output.size(),
             even_chunk(input.size(), comm.world().world_size, comm.world().rank).size());
  sum_own_chunk<T>(comm, input, output, "reduce_scatter");
}

template <class T>
void all_gather(Communicator& comm, std::span<const T> input, std::span<T> output) {
  check_size("all_gather", "input", input.size(),
             even_chunk(output.size(), comm.world().world_size, comm.world().rank).size());
  gather_chunks<T>(comm, input, output, "all_gather");
}

template void all_reduce(Communicator&, std::span<float>);
template void all_reduce(Communicator&, std::span<bf16>);
template void all_reduce(Communicator&, std::span<f16>);
template void reduce_scatter(Communicator&, std::span<const float>, std::span<float>);
template void reduce_scatter(Communicator&, std::span<const bf16>, std::span<bf16>);
template void reduce_scatter(Communicator&, std::span<const f16>, std::span<f16>);
template void all_gather(Communicator&, std::span<const float>, std::span<float>);
template void all_gather(Communicator&, std::span<const bf16>, std::span<bf16>);
template void all_gather(Communicator&, std::span<const f16>, std::span<f16>);
template void all_gather(Communicator&, std::span<const std::byte>, std::span<std::byte>);

}  // namespace bellows

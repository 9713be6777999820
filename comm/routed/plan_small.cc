#include <algorithm>
#include <cstring>

#include "bellows/base/digest.h"
#include "collectives/arguments.h"
#include "routed/plans.h"
#include "routed/segments.h"

namespace bellows {
namespace {

/// Where a message that was wanted at `place` was lent instead, it is copied there.
void copy_in(Exchange& x, int receive, int wave) {
  Exchange::Task task;
  task.wave = wave;
  task.run = [x = &x, receive] {
    const Exchange::Receive& r = x->receives[receive];
    if (r.transfer.data != r.place) std::memcpy(r.place, r.transfer.data, r.bytes);
  };
  x.task_after_receive(x.add_task(std::move(task)), receive);
}

}  // namespace

std::shared_ptr<Exchange> plan_swap(int rank, int world_size, std::span<const std::byte> mine,
                                    const std::vector<std::span<std::byte>>& all, const char* what) {
  std::vector<std::span<const std::byte>> send(world_size, mine);
  send[rank] = {};
  auto receive = all;
  receive[rank] = {};
  auto exchange = plan_all_to_all(rank, send, receive, what);
  exchange->signature = Signature().add(0x5A, mine.size()).value();
  if (!mine.empty()) std::memcpy(all[rank].data(), mine.data(), mine.size());
  return exchange;
}

std::shared_ptr<Exchange> plan_all_to_all(int rank, const std::vector<std::span<const std::byte>>& send,
                                          const std::vector<std::span<std::byte>>& receive, const char* what) {
  const int n = static_cast<int>(send.size());
  auto exchange = std::make_shared<Exchange>();
  exchange->what = what;
  exchange->signature = Signature().add(0xA2A).value();
  // A pair's messages depend on the size of the pair alone, so that both sides cut alike.
  const auto step_of = [&](std::size_t bytes) { return segment_bytes(bytes, n); };
  std::size_t waves = 0;
  for (int r = 0; r < n; ++r)
    if (r != rank)
      for (const std::size_t bytes : {send[r].size(), receive[r].size()})
        waves = std::max(waves, (bytes + step_of(bytes) - 1) / step_of(bytes));
  for (std::size_t w = 0; w < waves; ++w) {
    const int wave = exchange->add_wave();
    for (int i = 1; i < n; ++i) {
      const int from = (rank + n - i) % n, to = (rank + i) % n;
      if (const std::size_t step = step_of(receive[from].size()); w * step < receive[from].size()) {
        Exchange::Receive r;
        r.peer = from;
        r.key = static_cast<std::uint16_t>(w);
        r.place = receive[from].data() + w * step;
        r.bytes = std::min(step, receive[from].size() - w * step);
        r.wave = wave;
        copy_in(*exchange, exchange->add_receive(std::move(r)), wave);
      }
      if (const std::size_t step = step_of(send[to].size()); w * step < send[to].size()) {
        Exchange::Send s;
        s.peer = to;
        s.key = static_cast<std::uint16_t>(w);
        s.data = send[to].data() + w * step;
        s.bytes = std::min(step, send[to].size() - w * step);
        s.wave = wave;
        exchange->add_send(std::move(s));
      }
    }
  }
  if (send[rank].size() == receive[rank].size() && !send[rank].empty())
    std::memmove(receive[rank].data(), send[rank].data(), send[rank].size());
  return exchange;
}

std::shared_ptr<Exchange> plan_broadcast(int rank, int world_size, std::span<std::byte> data, int root,
                                         const char* what) {
  auto exchange = std::make_shared<Exchange>();
  exchange->what = what;
  exchange->signature = Signature().add(0xB0, data.size(), root).value();
  if (data.empty()) return exchange;
  // Ranks are renumbered from the root; number v hears from v without its highest bit, and tells v + 2^k for the k
  // above.
  const int v = (rank - root + world_size) % world_size;
  const auto real = [&](int number) { return (number + root) % world_size; };
  int highest = 1;
  while (highest * 2 <= v) highest *= 2;
  const std::size_t step = segment_bytes(data.size(), world_size);
  for (std::size_t at = 0, s = 0; at < data.size(); at += step, ++s) {
    const std::size_t bytes = std::min(step, data.size() - at);
    const int wave = exchange->add_wave();
    int ready = -1;
    if (v > 0) {
      Exchange::Receive r;
      r.peer = real(v - highest);
      r.key = static_cast<std::uint16_t>(s);
      r.place = data.data() + at;
      r.bytes = bytes;
      r.wave = wave;
      copy_in(*exchange, exchange->add_receive(std::move(r)), wave);
      ready = static_cast<int>(exchange->tasks.size()) - 1;
    }
    for (int k = v == 0 ? 1 : highest * 2; v + k < world_size; k *= 2) {
      Exchange::Send send;
      send.peer = real(v + k);
      send.key = static_cast<std::uint16_t>(s);
      send.data = data.data() + at;
      send.bytes = bytes;
      send.wave = wave;
      const int index = exchange->add_send(std::move(send));
      if (ready >= 0) exchange->send_after_task(index, ready);
    }
  }
  return exchange;
}

std::shared_ptr<Exchange> plan_barrier(int rank, int world_size, const char* what) {
  static const std::byte kToken[8] = {};
  auto exchange = std::make_shared<Exchange>();
  exchange->what = what;
  exchange->signature = Signature().add(0xBA).value();
  const int wave = exchange->add_wave(64 * 32);
  int before = -1;
  for (int distance = 1, round = 0; distance < world_size; distance *= 2, ++round) {
    Exchange::Send send;
    send.peer = (rank + distance) % world_size;
    send.key = static_cast<std::uint16_t>(round);
    send.data = kToken;
    send.bytes = sizeof kToken;
    send.wave = wave;
    const int out = exchange->add_send(std::move(send));
    if (before >= 0) exchange->send_after_task(out, before);
    Exchange::Receive receive;
    receive.peer = (rank - distance + world_size) % world_size;
    receive.key = static_cast<std::uint16_t>(round);
    receive.scratch = static_cast<std::size_t>(64 * round);
    receive.bytes = sizeof kToken;
    receive.wave = wave;
    const int in = exchange->add_receive(std::move(receive));
    Exchange::Task heard;
    heard.wave = wave;
    heard.run = [] {};
    const int task = exchange->add_task(std::move(heard));
    exchange->task_after_receive(task, in);
    if (before >= 0) exchange->task_after_task(task, before);
    before = task;
  }
  return exchange;
}

}  // namespace bellows

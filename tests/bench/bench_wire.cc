// A wire between two processes of this host: bandwidth of a one-way stream of large messages, latency of small ones,
// and beside them, in turns in the same run, what iperf3 gets over loopback TCP.
//
//   bench_wire [--rounds N] [--messages N] [--mib N]        UCX_TLS=tcp bench_wire
//
// Every figure is a median over the rounds. iperf3 sends in pieces of 1 MiB, on one connection.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/base/memory.h"
#include "routed/wire_ucx.h"

namespace {

using bellows::Nanos;
using bellows::now_ns;
using bellows::Transfer;
using bellows::Wire;
using bellows::WireTag;

struct Options {
  int rounds = 7;
  int messages = 64;
  std::size_t mib = 16;
  int ping_pongs = 2000;
};
constexpr std::size_t kSmall = 64;
constexpr std::size_t kInFlight = 2;

void finish(Wire& wire, const Transfer& transfer) {
  for (int looks = 0; transfer.state == Transfer::kPending;) {
    if (wire.progress())
      looks = 0;
    else if (++looks > 200)
      wire.wait(1'000'000, {});
  }
  if (transfer.state != Transfer::kFailed) return;
  std::fprintf(stderr, "error: %s\n", transfer.error.c_str());
  std::exit(1);
}

/// One end of the pair: rank 0 measures, rank 1 sends the stream and answers.
class End {
 public:
  End(int rank, int socket, const Options& options)
      : options_(options),
        peer_(1 - rank),
        wire_(bellows::make_ucx_wire({rank, 2, rank, 2, 1})),
        memory_(kInFlight * options.mib << 20) {
    const std::string mine = wire_->address();
    const std::size_t size = mine.size();
    std::size_t theirs = 0;
    const bool sent = write(socket, &size, sizeof size) == sizeof size && write(socket, mine.data(), size) >= 0;
    if (!sent || read(socket, &theirs, sizeof theirs) != sizeof theirs) std::exit(1);
    std::string address(theirs, '\0');
    if (recv(socket, address.data(), theirs, MSG_WAITALL) != static_cast<ssize_t>(theirs)) std::exit(1);
    std::vector<std::string> addresses(2);
    addresses[static_cast<std::size_t>(peer_)] = address;
    wire_->connect(addresses);
    wire_->remember(memory_.bytes());
  }

  void stream(bool sending) {
    const std::size_t size = options_.mib << 20;
    std::array<Transfer, kInFlight> transfers;
    for (int m = 0; m < options_.messages; ++m) {
      const std::size_t slot = static_cast<std::size_t>(m) % kInFlight;
      finish(*wire_, transfers[slot]);
      const auto place = memory_.bytes().subspan(slot * size, size);
      if (sending)
        wire_->send(peer_, next(), place, transfers[slot]);
      else
        wire_->receive(peer_, next(), place, transfers[slot]);
    }
    for (const Transfer& transfer : transfers) finish(*wire_, transfer);
  }
  void send_small() {
    Transfer transfer;
    wire_->send(peer_, next(), memory_.bytes().first(kSmall), transfer);
    finish(*wire_, transfer);
  }
  void receive_small() {
    Transfer transfer;
    wire_->receive(peer_, next(), memory_.bytes().first(kSmall), transfer);
    finish(*wire_, transfer);
  }
  const Wire& wire() const { return *wire_; }

 private:
  WireTag next() { return {++call_, 0}; }

  const Options options_;
  const int peer_;
  std::unique_ptr<Wire> wire_;
  bellows::HostMemory memory_;
  std::uint32_t call_ = 0;
};

void answer(End end, const Options& options) {
  for (int round = 0; round < options.rounds; ++round) {
    end.receive_small();
    end.stream(true);
    for (int i = 0; i < options.ping_pongs; ++i) {
      end.receive_small();
      end.send_small();
    }
  }
  end.receive_small();
}

int free_port() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(socket_fd);
  return ntohs(address.sin_port);
}

/// GB/s, or 0 without iperf3.
double iperf3() {
  const std::string port = std::to_string(free_port());
  const std::string command = "iperf3 -s -1 -D -p " + port +
                              " >/dev/null 2>&1 && sleep 0.2 && iperf3 -c 127.0.0.1 -p " + port +
                              " -t 1 -l 1M -J 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return 0;
  std::string output;
  for (char piece[4096]; std::fgets(piece, sizeof piece, pipe);) output += piece;
  pclose(pipe);
  const std::string key = "\"bits_per_second\":";
  std::size_t at = output.find("\"sum_received\"");
  if (at == std::string::npos || (at = output.find(key, at)) == std::string::npos) return 0;
  return std::atof(output.c_str() + at + key.size()) / 8e9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(End end, const Options& options) {
  std::vector<double> bandwidths, latencies, plain;
  const double bytes = static_cast<double>(options.mib << 20) * options.messages;
  for (int round = 0; round < options.rounds; ++round) {
    plain.push_back(iperf3());
    end.send_small();
    Nanos start = now_ns();
    end.stream(false);
    bandwidths.push_back(bytes / static_cast<double>(now_ns() - start));
    start = now_ns();
    for (int i = 0; i < options.ping_pongs; ++i) {
      end.send_small();
      end.receive_small();
    }
    latencies.push_back(static_cast<double>(now_ns() - start) * 1e-3 / options.ping_pongs / 2);
    std::printf("round %d: %.2f GB/s, %.1f us, iperf3 %.2f GB/s\n", round, bandwidths.back(), latencies.back(),
                plain.back());
  }
  std::printf("%s: %zu MiB messages %.2f GB/s; %zu B one way %.1f us", end.wire().describe().c_str(), options.mib,
              median(bandwidths), kSmall, median(latencies));
  if (median(plain) > 0)
    std::printf("; iperf3 %.2f GB/s (the wire has %.0f %% of it)", median(plain),
                100 * median(bandwidths) / median(plain));
  std::printf("\n");
  end.send_small();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const int value = i + 1 < argc ? std::atoi(argv[i + 1]) : 0;
    if (value > 0 && flag == "--rounds")
      options.rounds = value;
    else if (value > 0 && flag == "--messages")
      options.messages = value;
    else if (value > 0 && flag == "--mib")
      options.mib = static_cast<std::size_t>(value);
    else {
      std::fprintf(stderr, "usage: bench_wire [--rounds N] [--messages N] [--mib N]\n");
      return 2;
    }
    ++i;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  const pid_t child = fork();  // before UCX is loaded: it does not survive a fork
  try {
    if (child == 0) {
      answer(End(1, ends[1], options), options);
      return 0;
    }
    measure(End(0, ends[0], options), options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

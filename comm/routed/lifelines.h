#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/base/error.h"
#include "bellows/base/mutex.h"
#include "bellows/base/world.h"

namespace bellows {

/// A TCP connection between every two ranks of a generation that carries no data: its end tells that a peer is gone
/// (at once if the process was killed, within seconds if its host was), and first errors, farewells and questions
/// travel on it whatever state the data wires are in. For wires that do not notice a peer's death by themselves.
///
/// Peers prove themselves with the generation's secret, drawn by rank and exchanged through the bootstrap; whoever
/// cannot is dropped. `poll` is called by one thread at a time; `tell_*` from any thread.
class Lifelines {
 public:
  struct Failure {
    CommError::Kind kind = CommError::Kind::kAborted;
    std::string operation;
    std::vector<int> ranks;
    std::string message;
  };
  /// What a rank says about a call that it waits in.
  struct Question {
    std::uint32_t call = 0;
    std::uint64_t signature = 0;
    std::string what;
  };
  struct Events {
    std::function<void(int rank, const std::string& how)> lost;  ///< its connection broke without a farewell
    std::function<void(int rank)> left;                          ///< it has dropped the communicator
    std::function<void(const Failure&)> failed;                  ///< a peer has told the first error
    std::function<void(int rank, const Question&)> asked;
    std::function<void(int rank, std::uint32_t call)> here;  ///< the answer: it waits in the same call
  };

  /// Listens on `bind` ("" for every address) and a free port.
  Lifelines(const World& world, const std::string& bind);
  ~Lifelines();
  Lifelines(const Lifelines&) = delete;
  Lifelines& operator=(const Lifelines&) = delete;

  /// Port, secret and addresses of this rank, for peers.
  std::string address() const;
  /// Connects to all lower ranks and accepts all higher ones. Throws CommError naming the ranks that did not come.
  void connect(const std::vector<std::string>& addresses, Deadline deadline);

  /// Readable when `poll` would have something to do.
  int fd() const;
  void poll(const Events& events);

  void tell_failure(const Failure& failure);
  void tell_farewell();
  void ask(int rank, const Question& question);
  void answer(int rank, std::uint32_t call);

 private:
  struct Peer;
  void send(int rank, char type, const std::string& body);
  bool read_some(int rank, const Events& events);

  const World world_;
  int listener_ = -1;
  int epoll_ = -1;
  int port_ = 0;
  std::string bind_;
  std::string secret_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

/// Addresses of this host that peers may reach, the nearest first: loopback stands at the end.
std::vector<std::string> own_addresses();

}  // namespace bellows

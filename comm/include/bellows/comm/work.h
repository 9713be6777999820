#pragma once
#include <memory>

#include "bellows/base/clock.h"

namespace bellows {

/// A collective under way. Copyable handle; memory it uses stays borrowed until it is done.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() const = 0;
    virtual void wait() = 0;         ///< throws the communicator's first error
    virtual Nanos finished_at() const = 0;
  };
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  bool done() const { return !state_ || state_->done(); }
  /// Returns when done; throws CommError if a peer is lost, the deadline passes or the communicator is aborted.
  void wait() const {
    if (state_) state_->wait();
  }
  Nanos finished_at() const { return state_ ? state_->finished_at() : 0; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows

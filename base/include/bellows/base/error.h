#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bellows/base/check.h"

namespace bellows {

/// Something a person must mend: a wrong flag, a missing file, a checkpoint of another model.
/// The message names the offending value and the way out. Ends the process with exit code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Ends a step: a peer was lost, a deadline passed, or the generation was aborted.
/// Latched by the communicator: every later call on it throws the same first error. Caught only in Session.
class CommError : public std::runtime_error {
 public:
  enum class Kind { kPeerLost, kTimeout, kAborted };
  CommError(Kind kind, std::string operation, std::vector<int> ranks, std::uint64_t generation, const std::string& what)
      : std::runtime_error(what), kind_(kind), operation_(std::move(operation)), ranks_(std::move(ranks)),
        generation_(generation) {}
  Kind kind() const { return kind_; }
  const std::string& operation() const { return operation_; }
  /// The peers that were lost or late; empty when aborted from outside.
  const std::vector<int>& ranks() const { return ranks_; }
  std::uint64_t generation() const { return generation_; }

 private:
  Kind kind_;
  std::string operation_;
  std::vector<int> ranks_;
  std::uint64_t generation_;
};

/// A value or the reason why there is none, for failures that a caller expects to branch on.
template <class T>
class Result {
 public:
  Result(T value) : content_(std::move(value)) {}  // NOLINT: implicit on purpose
  static Result failure(std::string reason) { return Result(Failure{std::move(reason)}); }

  bool ok() const { return std::holds_alternative<T>(content_); }
  explicit operator bool() const { return ok(); }
  const T& value() const {
    BELLOWS_CHECK(ok());
    return std::get<T>(content_);
  }
  T& value() {
    BELLOWS_CHECK(ok());
    return std::get<T>(content_);
  }
  const std::string& error() const { return std::get<Failure>(content_).reason; }
  /// The value, or a UserError with the reason.
  T value_or_throw() && {
    if (!ok()) throw UserError(error());
    return std::move(std::get<T>(content_));
  }

 private:
  struct Failure {
    std::string reason;
  };
  explicit Result(Failure failure) : content_(std::move(failure)) {}
  std::variant<T, Failure> content_;
};

}  // namespace bellows

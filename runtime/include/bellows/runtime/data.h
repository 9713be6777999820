#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bellows {

/// A shuffled order without state: where sample number `n` of the training stands in the data. Every sample exactly once
/// per epoch, another order each epoch; a pure function of (seed, samples, n), so ranks, restarts and resizes agree.
class ShuffledOrder {
 public:
  ShuffledOrder(std::uint64_t seed, std::int64_t samples) : seed_(seed), samples_(samples) {}
  std::int64_t at(std::int64_t n) const;
  std::int64_t samples() const { return samples_; }

 private:
  std::uint64_t seed_;
  std::int64_t samples_;
};

/// Text files as bytes, memory-mapped, cut in sequences of `seq` inputs with their next bytes as targets. The last
/// `held_out` share of every file (whole sequences) is kept for evaluation and never trained on.
class TextData {
 public:
  /// Throws UserError naming the file and its size if it is missing, unreadable, empty or shorter than one sequence.
  TextData(const std::vector<std::string>& files, int seq, std::uint64_t seed, double held_out = 0.05);
  ~TextData();
  TextData(TextData&&) noexcept;

  std::int64_t train_samples() const;
  std::int64_t held_out_samples() const;
  /// tokens and targets get seq values (0..255) of training sample number `n` of the run (shuffled order inside).
  void train(std::int64_t n, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;
  /// Held-out sequence n modulo their number, in file order.
  void held_out(std::int64_t n, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;
  /// Changes if a file's length or content (sampled) changes; part of the job's fingerprint.
  std::string fingerprint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows

#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "bellows/base/memory.h"

namespace gpt {

/// One stretch of memory from which a model's activations are cut: first every buffer is reserved, then all get their
/// place at once.
class Activations {
 public:
  template <class T>
  void reserve(T** at, std::size_t count) {
    const std::size_t begin = bytes_;
    wanted_.push_back([at, begin](std::byte* base) { *at = reinterpret_cast<T*>(base + begin); });
    bytes_ += (count * sizeof(T) + 63) / 64 * 64;
  }
  void allocate() {
    memory_ = bellows::HostMemory(bytes_);
    for (const auto& place : wanted_) place(memory_.data());
    wanted_.clear();
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::function<void(std::byte*)>> wanted_;
  std::size_t bytes_ = 0;
  bellows::HostMemory memory_;
};

}  // namespace gpt

#pragma once

namespace bellows {

/// A ZeRO stage is three facts; nothing else in the engine asks for its number.
/// (Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", SC 2020)
struct Stage {
  bool shards_optimizer = false;
  bool shards_gradients = false;
  bool shards_parameters = false;

  static Stage of(int number) { return {number >= 1, number >= 2, number >= 3}; }
};

}  // namespace bellows

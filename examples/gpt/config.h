#pragma once
#include <cstdint>
#include <string>

namespace gpt {

enum class Norm { kLayer, kRms };
enum class Position { kLearned, kRotary };
enum class Activation { kGelu, kSwiGlu };  ///< GELU in its tanh form

/// The shape of a pre-norm decoder-only transformer. The defaults are GPT-2's kind; `llama()` gives the other.
struct GptConfig {
  int vocab = 256;
  int layers = 6;
  int heads = 6;
  int kv_heads = 0;  ///< heads of keys and values, a divisor of `heads`; 0: as many as heads
  int dim = 384;
  int hidden = 0;  ///< width of the feed-forward layer; 0: 4 dim, for SwiGLU 8/3 dim rounded up to 64
  int seq = 256;
  Norm norm = Norm::kLayer;
  Position position = Position::kLearned;
  Activation activation = Activation::kGelu;
  bool bias = true;  ///< in projections, and in LayerNorm
  bool tied = true;  ///< the output head is the embedding table
  float norm_epsilon = 1e-5f;
  float rotary_base = 10000.0f;

  /// RMSNorm, rotary positions, SwiGLU, no biases, untied head.
  static GptConfig llama();
  /// The defaults that are 0 filled in. Throws UserError naming the value that does not fit.
  GptConfig resolved() const;

  int head_dim() const { return dim / heads; }
  int qkv_dim() const { return (heads + 2 * kv_heads) * head_dim(); }
  int up_dim() const { return activation == Activation::kSwiGlu ? 2 * hidden : hidden; }
  bool norm_bias() const { return norm == Norm::kLayer && bias; }
  bool operator==(const GptConfig&) const = default;
};

/// "GPT 6 layers, 6 heads, 384 wide, ..."
std::string describe(const GptConfig& config);

}  // namespace gpt

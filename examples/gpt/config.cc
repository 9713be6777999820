#include "config.h"

#include "bellows/base/error.h"

namespace gpt {
namespace {

void require(bool fits, const std::string& what) {
  if (!fits) throw bellows::UserError(what);
}

void require_positive(const char* name, int value) {
  require(value > 0, std::string(name) + " must be at least 1, got " + std::to_string(value));
}

}  // namespace

GptConfig GptConfig::llama() {
  GptConfig config;
  config.norm = Norm::kRms;
  config.position = Position::kRotary;
  config.activation = Activation::kSwiGlu;
  config.bias = false;
  config.tied = false;
  return config;
}

GptConfig GptConfig::resolved() const {
  GptConfig c = *this;
  require_positive("vocab", vocab);
  require_positive("layers", layers);
  require_positive("heads", heads);
  require_positive("dim", dim);
  require_positive("seq", seq);
  require(kv_heads >= 0, "kv-heads must not be negative, got " + std::to_string(kv_heads));
  require(hidden >= 0, "hidden must not be negative, got " + std::to_string(hidden));
  require(dim % heads == 0,
          "dim " + std::to_string(dim) + " is not a multiple of the number of heads " + std::to_string(heads));
  if (c.kv_heads == 0) c.kv_heads = heads;
  require(heads % c.kv_heads == 0,
          "heads " + std::to_string(heads) + " is not a multiple of kv-heads " + std::to_string(c.kv_heads));
  require(position != Position::kRotary || head_dim() % 2 == 0,
          "rotary positions need an even head width, but dim / heads is " + std::to_string(head_dim()));
  if (c.hidden == 0) c.hidden = activation == Activation::kSwiGlu ? (8 * dim / 3 + 63) / 64 * 64 : 4 * dim;
  return c;
}

std::string describe(const GptConfig& c) {
  std::string text = std::to_string(c.layers) + " layers, " + std::to_string(c.heads) + " heads";
  if (c.kv_heads != c.heads) text += " on " + std::to_string(c.kv_heads) + " of keys and values";
  text += ", " + std::to_string(c.dim) + " wide, " + std::to_string(c.hidden) + " hidden, sequence " +
          std::to_string(c.seq) + ", vocabulary " + std::to_string(c.vocab);
  text += c.norm == Norm::kLayer ? ", LayerNorm" : ", RMSNorm";
  text += c.position == Position::kLearned ? ", learned positions" : ", rotary positions";
  text += c.activation == Activation::kGelu ? ", GELU" : ", SwiGLU";
  text += c.bias ? ", biases" : ", no biases";
  text += c.tied ? ", tied head" : ", own head";
  return text;
}

}  // namespace gpt

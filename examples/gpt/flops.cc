#include "flops.h"

namespace gpt {

std::int64_t matrix_parameters(const GptConfig& config) {
  const GptConfig c = config.resolved();
  const std::int64_t dim = c.dim;
  const std::int64_t block = c.qkv_dim() * dim + dim * dim + c.up_dim() * dim + dim * c.hidden;
  return c.layers * block + c.vocab * dim;
}

double model_flops_per_token(const GptConfig& config) {
  return 6.0 * static_cast<double>(matrix_parameters(config)) +
         12.0 * config.layers * static_cast<double>(config.dim) * config.seq;
}

}  // namespace gpt

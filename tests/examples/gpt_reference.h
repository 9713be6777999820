#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout.h"

namespace gpt {

/// The model written once more in float64, the plainest way: only the loss. What the trainer's gradients are held
/// against are central differences of this function, which in float64 are good to eight digits.
class Reference {
 public:
  /// `params`: all units one after another.
  Reference(const GptConfig& config, std::vector<double> params)
      : params(std::move(params)), c_(config.resolved()), layout_(c_) {}

  std::vector<double> params;

  double loss(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const {
    double sum = 0;
    for (std::size_t first = 0; first < tokens.size(); first += c_.seq)
      sum += sequence_loss(tokens.subspan(first, c_.seq), targets.subspan(first, c_.seq));
    return sum;
  }
  double derivative(std::size_t element, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
    const double before = params[element], step = 1e-5;
    params[element] = before + step;
    const double above = loss(tokens, targets);
    params[element] = before - step;
    const double below = loss(tokens, targets);
    params[element] = before;
    return (above - below) / (2 * step);
  }

 private:
  using Row = std::vector<double>;

  const double* at(std::size_t unit, const std::string& name) const {
    std::size_t begin = 0;
    for (std::size_t u = 0; u < unit; ++u) begin += layout_.units[u].count;
    if (!layout_.units[unit].has(name)) return nullptr;
    return params.data() + begin + layout_.units[unit].find(name).offset;
  }
  Row norm(const Row& x, const double* weight, const double* bias) const {
    double mean = 0, square = 0;
    if (c_.norm == Norm::kLayer)
      for (const double v : x) mean += v / c_.dim;
    for (const double v : x) square += (v - mean) * (v - mean) / c_.dim;
    Row y(c_.dim);
    for (int i = 0; i < c_.dim; ++i)
      y[i] =
          (x[i] - mean) / std::sqrt(square + static_cast<double>(c_.norm_epsilon)) * weight[i] + (bias ? bias[i] : 0);
    return y;
  }
  static Row linear(const Row& x, const double* weight, const double* bias, int out) {
    Row y(out);
    for (int o = 0; o < out; ++o) {
      y[o] = bias ? bias[o] : 0;
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
    }
    return y;
  }
  void turn(Row& row, int position) const {
    const int d = c_.head_dim();
    for (int h = 0; h < c_.heads + c_.kv_heads; ++h)
      for (int j = 0; j < d / 2; ++j) {
        const double angle = position * std::pow(static_cast<double>(c_.rotary_base), -2.0 * j / d);
        double &x = row[h * d + j], &y = row[h * d + j + d / 2];
        const double turned = x * std::cos(angle) - y * std::sin(angle);
        y = y * std::cos(angle) + x * std::sin(angle);
        x = turned;
      }
  }
  Row attention(const std::vector<Row>& qkv, int t) const {
    const int d = c_.head_dim();
    Row out(c_.dim);
    for (int h = 0; h < c_.heads; ++h) {
      const int kv = h / (c_.heads / c_.kv_heads), key = (c_.heads + kv) * d, value = (c_.heads + c_.kv_heads + kv) * d;
      Row p(t + 1);
      double total = 0;
      for (int s = 0; s <= t; ++s) {
        double dot = 0;
        for (int i = 0; i < d; ++i) dot += qkv[t][h * d + i] * qkv[s][key + i];
        total += p[s] = std::exp(dot / std::sqrt(static_cast<double>(d)));
      }
      for (int s = 0; s <= t; ++s)
        for (int i = 0; i < d; ++i) out[h * d + i] += p[s] / total * qkv[s][value + i];
    }
    return out;
  }
  Row activation(const Row& u) const {
    Row a(c_.hidden);
    for (int i = 0; i < c_.hidden; ++i)
      if (c_.activation == Activation::kGelu)
        a[i] = 0.5 * u[i] * (1 + std::tanh(std::sqrt(2 / M_PI) * (u[i] + 0.044715 * u[i] * u[i] * u[i])));
      else
        a[i] = u[i] / (1 + std::exp(-u[i])) * u[c_.hidden + i];
    return a;
  }
  static void add(Row& to, const Row& what) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
  }
  double sequence_loss(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const {
    const double *table = at(0, "tokens"), *positions = at(0, "positions");
    std::vector<Row> x;
    for (int t = 0; t < c_.seq; ++t) {
      Row row(table + tokens[t] * c_.dim, table + (tokens[t] + 1) * c_.dim);
      if (positions) add(row, Row(positions + t * c_.dim, positions + (t + 1) * c_.dim));
      x.push_back(row);
    }
    for (int layer = 0; layer < c_.layers; ++layer) {
      const std::size_t u = 1 + layer;
      std::vector<Row> qkv;
      for (int t = 0; t < c_.seq; ++t) {
        qkv.push_back(linear(norm(x[t], at(u, "norm1.weight"), at(u, "norm1.bias")), at(u, "attention.qkv.weight"),
                             at(u, "attention.qkv.bias"), c_.qkv_dim()));
        if (c_.position == Position::kRotary) turn(qkv.back(), t);
      }
      for (int t = 0; t < c_.seq; ++t) {
        add(x[t], linear(attention(qkv, t), at(u, "attention.out.weight"), at(u, "attention.out.bias"), c_.dim));
        const Row up = linear(norm(x[t], at(u, "norm2.weight"), at(u, "norm2.bias")), at(u, "mlp.up.weight"),
                              at(u, "mlp.up.bias"), c_.up_dim());
        add(x[t], linear(activation(up), at(u, "mlp.down.weight"), at(u, "mlp.down.bias"), c_.dim));
      }
    }
    const std::size_t head = layout_.units.size() - 1;
    const double* output = c_.tied ? table : at(head, "output");
    double sum = 0;
    for (int t = 0; t < c_.seq; ++t) {
      if (targets[t] < 0) continue;
      const Row logits = linear(norm(x[t], at(head, "norm.weight"), at(head, "norm.bias")), output, nullptr, c_.vocab);
      double total = 0;
      for (const double l : logits) total += std::exp(l);
      sum += std::log(total) - logits[targets[t]];
    }
    return sum;
  }

  GptConfig c_;
  GptLayout layout_;
};

}  // namespace gpt

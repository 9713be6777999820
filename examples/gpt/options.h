#pragma once
#include <string>
#include <vector>

#include "bellows/elastic/session.h"
#include "bellows/optimizer/optimizer.h"
#include "config.h"

namespace gpt {

/// Everything that `gpt-train` can be told, resolved and checked.
struct GptOptions {
  GptConfig model;
  std::vector<std::string> data;      ///< files, or the one word "synthetic"
  bellows::TrainOptions train;
  std::string optimizer = "adamw";
  double weight_decay = 0.1;
  int threads = 1;
  int sample = 0;                     ///< bytes to write when training is finished
  double temperature = 0.8;
  std::uint64_t seed = 1;
  bool synthetic() const { return data.size() == 1 && data[0] == "synthetic"; }
  std::unique_ptr<bellows::Optimizer> make_optimizer() const;
};

/// From the command line, BELLOWS_… variables and a TOML file, in this order of precedence. Throws UserError naming the
/// offending value; prints --help and exits where asked.
GptOptions parse_options(int argc, char** argv);

}  // namespace gpt

#pragma once
#include <cstdio>
#include <optional>
#include <string>

#include "bellows/elastic/session.h"

namespace bellows {

/// The --metrics file: JSON lines, appended and flushed one by one, so that a killed job leaves whole lines.
class MetricsWriter {
 public:
  MetricsWriter() = default;
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Throws UserError naming the path if it cannot be written. `fresh`: what an earlier run left is dropped.
  void open(const std::string& path, bool fresh);
  bool is_open() const { return file_ != nullptr; }

  void step(const StepRecord& record);
  void evaluation(std::int64_t step, float loss);
  struct WorldChange {
    std::int64_t step = 0;
    std::uint64_t generation = 0;
    int from = 0, to = 0;
    bool planned = true;
    std::string reason, source;
    std::uint64_t bytes_moved = 0, bytes_minimum = 0;
    double ms = 0;
  };
  void world(const WorldChange& change);
  void end(const TrainResult& result);

 private:
  void line(const std::string& text);
  std::FILE* file_ = nullptr;
};

}  // namespace bellows

#include "bellows/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace bellows {

void init_log(const std::string& who, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("bellows", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %^%L%$ [" + who + "] %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace bellows

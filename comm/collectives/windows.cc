#include "collectives/windows.h"

#include <stdexcept>

namespace bellows {

void check_interval(const char* what, const Interval& interval, std::size_t not_before) {
  if (interval.begin < not_before || interval.end < interval.begin)
    throw std::invalid_argument(std::string(what) + ": interval [" + std::to_string(interval.begin) + ", " +
                                std::to_string(interval.end) + ") is empty, out of order or before element " +
                                std::to_string(not_before));
}

}  // namespace bellows

#pragma once
#include <cstddef>
#include <string>

#include "layout.h"

namespace gpt {

/// Where a unit's parameters lie in its memory; the same for parameters and gradients.
struct Place {
  std::ptrdiff_t offset = -1;  // -1: the model has no such parameter
  std::size_t count = 0;
  template <class U>
  U* in(U* unit) const {
    return offset < 0 ? nullptr : unit + offset;
  }
};
inline Place place(const GptUnit& unit, const std::string& name) {
  if (!unit.has(name)) return {};
  const GptParameter& p = unit.find(name);
  return {static_cast<std::ptrdiff_t>(p.offset), p.count};
}

}  // namespace gpt

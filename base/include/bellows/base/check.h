#pragma once
#include <sstream>
#include <string>

// CHECK: a broken invariant of our own. Prints the condition, both values and the place, then aborts.
// What a user can cause is never a CHECK: it is an Error or a Result (see error.h).

namespace bellows::detail {
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

template <class A, class B>
std::string describe(const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " vs " << b << ")";
  return out.str();
}
}  // namespace bellows::detail

#define BELLOWS_CHECK(condition) \
  ((condition) ? (void)0 : ::bellows::detail::check_failed(__FILE__, __LINE__, #condition))
#define BELLOWS_CHECK_OP(a, op, b)                                                                 \
  do {                                                                                             \
    const auto& check_a = (a);                                                                     \
    const auto& check_b = (b);                                                                     \
    if (!(check_a op check_b))                                                                     \
      ::bellows::detail::check_failed(__FILE__, __LINE__,                                          \
                                      ::bellows::detail::describe(#a " " #op " " #b, check_a, check_b)); \
  } while (0)
#define BELLOWS_CHECK_EQ(a, b) BELLOWS_CHECK_OP(a, ==, b)
#define BELLOWS_CHECK_NE(a, b) BELLOWS_CHECK_OP(a, !=, b)
#define BELLOWS_CHECK_LT(a, b) BELLOWS_CHECK_OP(a, <, b)
#define BELLOWS_CHECK_LE(a, b) BELLOWS_CHECK_OP(a, <=, b)
#define BELLOWS_CHECK_GE(a, b) BELLOWS_CHECK_OP(a, >=, b)
#define BELLOWS_CHECK_GT(a, b) BELLOWS_CHECK_OP(a, >, b)

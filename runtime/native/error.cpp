#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace fa3 {

namespace {
constexpr size_t kTextCapacity = 2048;
thread_local char last_text[kTextCapacity];
}  // namespace

void fail(fa3_status status, const char* format, ...) {
  char text[kTextCapacity];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Error{status, text};
}

fa3_status remember(fa3_status status, const char* message) noexcept {
  std::snprintf(last_text, sizeof last_text, "%s", message);
  return status;
}

const char* last_error() noexcept { return last_text; }

}  // namespace fa3

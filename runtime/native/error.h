// How failures travel inside the library: as exceptions, turned into a status and a text at the C boundary.
#pragma once

#include <new>
#include <string>

#include "fa3.h"

namespace fa3 {

struct Error {
  fa3_status status;
  std::string message;
};

// Throws an Error; the text is made as printf makes it.
[[noreturn]] void fail(fa3_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Keeps `message` as this thread's last error.
fa3_status remember(fa3_status status, const char* message) noexcept;
const char* last_error() noexcept;

// Runs `body` and returns what the C function should return.
template <typename Body>
fa3_status guarded(Body&& body) noexcept {
  try {
    body();
    return FA3_OK;
  } catch (const Error& error) {
    return remember(error.status, error.message.c_str());
  } catch (const std::bad_alloc&) {
    return remember(FA3_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& error) {
    return remember(FA3_BAD_VALUE, error.what());
  }
}

}  // namespace fa3

// What a launch would pass, as text.
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "call.h"
#include "error.h"
#include "launch.h"

namespace fa3 {

namespace {

void append(std::string& text, const char* format, ...) __attribute__((format(printf, 2, 3)));

void append(std::string& text, const char* format, ...) {
  char line[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  text += line;
}

template <typename Number>
void append_list(std::string& text, const char* name, const Number* numbers, int count) {
  append(text, " %s ", name);
  for (int i = 0; i < count; i++) append(text, i == 0 ? "%" PRIu64 : ",%" PRIu64, static_cast<uint64_t>(numbers[i]));
}

void append_map(std::string& text, const MapArgs& map) {
  const MapSpec& spec = *map.spec;
  append(text, " %s address %#" PRIxPTR, dtype_name(spec.dtype), reinterpret_cast<uintptr_t>(map.address));
  if (map.address != nullptr) {
    append_list(text, "dims", map.dims, spec.rank);
    append_list(text, "strides", map.strides, spec.rank - 1);
  }
  append_list(text, "box", spec.box, spec.rank);
  append(text, " swizzle %d", spec.swizzle_bytes);
}

void append_value(std::string& text, const Param& param, const Value& value, const PreparedCall& prepared) {
  switch (param.kind) {
    case Kind::TensorMap:
      append(text, "tensormap");
      append_map(text, prepared.maps[value.map]);
      break;
    case Kind::Pointer:
      append(text, "pointer ");
      if (param.source == Source::Workspace && value.pointer == nullptr) {
        append(text, "workspace");
      } else {
        append(text, "%#" PRIxPTR, reinterpret_cast<uintptr_t>(value.pointer));
      }
      break;
    case Kind::I32: append(text, "i32 %" PRId32, value.i32); break;
    case Kind::I64: append(text, "i64 %" PRId64, value.i64); break;
    case Kind::F32: append(text, "f32 %.9g", static_cast<double>(value.f32)); break;
  }
}

}  // namespace

std::string describe(const fa3_kernel& kernel, const fa3_call& call, int32_t num_sms) {
  const Spec& spec = kernel.spec;
  PreparedCall prepared;
  prepare(spec, call, prepared);
  if (prepared.num_tiles == 0) return "grid 0\n";
  std::string text;
  append(text, "grid %u\nblock %u\nsmem %u\n", grid_size(spec, prepared.num_tiles, call.sm_margin, num_sms),
         spec.threads, spec.smem_bytes);
  for (size_t i = 0; i < spec.params.size(); i++) {
    append(text, "param %s ", spec.params[i].name.c_str());
    append_value(text, spec.params[i], prepared.values[i], prepared);
    text += '\n';
  }
  return text;
}

}  // namespace fa3

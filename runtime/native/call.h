// A call checked against the kernel it is for, and turned into what the kernel takes.  Knows nothing of the driver.
#pragma once

#include <cstdint>

#include "spec.h"

namespace fa3 {

// What a tensor map is encoded from; dims and byte strides innermost first.
struct MapArgs {
  const MapSpec* spec = nullptr;
  void* address = nullptr;  // nullptr: the tensor is absent, the map is all zeros
  uint64_t dims[kMaxRank];
  uint64_t strides[kMaxRank];  // strides[i] belongs to dims[i + 1]
};

// The value of a parameter; of a tensor map, its place among `PreparedCall::maps`.
union Value {
  void* pointer;
  int64_t i64;
  int32_t i32;
  float f32;
  int32_t map;
};

struct PreparedCall {
  int32_t device = 0;
  int64_t num_tiles = 0;     // 0: nothing to launch, and nothing below is set
  Value values[kMaxParams];  // one a parameter; workspace pointers are the launcher's to fill
  MapArgs maps[kMaxMaps];
  int num_maps = 0;
};

// Throws FA3_BAD_VALUE or FA3_BAD_TYPE with the argument's name.
void prepare(const Spec& spec, const fa3_call& call, PreparedCall& prepared);

// CTAs of a launch with `num_tiles` tiles.
uint32_t grid_size(const Spec& spec, int64_t num_tiles, int32_t sm_margin, int32_t num_sms);

}  // namespace fa3

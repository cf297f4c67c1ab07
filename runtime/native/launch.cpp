#include "launch.h"

#include "call.h"
#include "error.h"

namespace fa3 {

namespace {

int map_dtype(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_BF16: return cuda::kTensorBfloat16;
    case FA3_FP16: return cuda::kTensorFloat16;
    default: return cuda::kTensorUint8;
  }
}

int map_swizzle(int bytes) {
  switch (bytes) {
    case 32: return cuda::kSwizzle32B;
    case 64: return cuda::kSwizzle64B;
    case 128: return cuda::kSwizzle128B;
    default: return cuda::kSwizzleNone;
  }
}

void encode(const cuda::Driver& driver, const MapArgs& args, cuda::TensorMap& map) {
  constexpr uint32_t kEveryElement[kMaxRank] = {1, 1, 1, 1, 1};
  if (args.address == nullptr) {
    map = cuda::TensorMap{};
    return;
  }
  const MapSpec& spec = *args.spec;
  cuda::check(
      driver,
      driver.cuTensorMapEncodeTiled(&map, map_dtype(spec.dtype), static_cast<uint32_t>(spec.rank), args.address,
                                    args.dims, args.strides, spec.box, kEveryElement, cuda::kInterleaveNone,
                                    map_swizzle(spec.swizzle_bytes), cuda::kL2Promotion128B, cuda::kOobFillZero),
      "cuTensorMapEncodeTiled");
}

// A counter that no launch which may overlap this one has.
void* tile_counter(const cuda::Driver& driver, Device& device, cuda::Stream stream) {
  int status = cuda::kCaptureStatusNone;
  cuda::check(driver, driver.cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  if (status != cuda::kCaptureStatusNone) return reinterpret_cast<void*>(device.counters.fresh(driver));
  unsigned long long id = 0;
  cuda::check(driver, driver.cuStreamGetId(stream, &id), "cuStreamGetId");
  return reinterpret_cast<void*>(device.counters.of_stream(driver, id));
}

}  // namespace

void launch(const fa3_kernel& kernel, const fa3_call& call) {
  const Spec& spec = kernel.spec;
  PreparedCall prepared;
  prepare(spec, call, prepared);
  if (prepared.num_tiles == 0) return;

  const cuda::Driver& driver = cuda::driver();
  Device& device = fa3::device(driver, prepared.device);
  const uint32_t grid = grid_size(spec, prepared.num_tiles, call.sm_margin, device.num_sms);
  const ScopedContext context(driver, device);
  // Launched as a kernel, not as the context's function: then it runs in the context of the stream, which may be a
  // green one of the same device.
  const auto function = reinterpret_cast<cuda::Function>(kernel.loaded.on(driver, device, spec, *kernel.arch));

  const auto stream = static_cast<cuda::Stream>(call.stream);
  cuda::TensorMap maps[kMaxMaps];
  void* params[kMaxParams];
  for (size_t i = 0; i < spec.params.size(); i++) {
    Value& value = prepared.values[i];
    params[i] = &value;
    if (spec.params[i].kind == Kind::TensorMap) {
      params[i] = &maps[value.map];
      encode(driver, prepared.maps[value.map], maps[value.map]);
    } else if (spec.params[i].source == Source::Workspace && value.pointer == nullptr) {
      value.pointer = tile_counter(driver, device, stream);
    }
  }
  const cuda::LaunchConfig config{{grid, 1, 1}, {spec.threads, 1, 1}, spec.smem_bytes, stream, nullptr, 0};
  cuda::check(driver, driver.cuLaunchKernelEx(&config, function, params, nullptr), "cuLaunchKernelEx");
}

void warm(const fa3_kernel& kernel, int32_t ordinal) {
  const cuda::Driver& driver = cuda::driver();
  Device& device = fa3::device(driver, ordinal);
  const ScopedContext context(driver, device);
  kernel.loaded.on(driver, device, kernel.spec, *kernel.arch);
  device.counters.reserve(driver);
}

}  // namespace fa3

// Holds runtime/native/driver.h, which was written by hand, against NVIDIA's cuda.h.  Compiling this file is the test.
#include <cuda.h>

#include <string_view>
#include <type_traits>

#include "driver.h"

namespace ours = fa3::cuda;

// Whether a value of type `Ours` is passed like one of type `Theirs`, and means the same as far as types can tell.
// Handles are pointers to types that nobody looks into; enumerations are ints of one size.
template <typename Ours, typename Theirs>
constexpr bool same();

template <typename Ours, typename Theirs>
constexpr bool same_pointee() {
  using O = std::remove_cv_t<Ours>;
  using T = std::remove_cv_t<Theirs>;
  if constexpr (std::is_const_v<Ours> != std::is_const_v<Theirs>) {
    return false;
  } else if constexpr (std::is_same_v<O, ours::TensorMap>) {
    return std::is_same_v<T, CUtensorMap>;
  } else if constexpr (std::is_same_v<O, ours::LaunchConfig>) {
    return std::is_same_v<T, CUlaunchConfig>;
  } else if constexpr (std::is_void_v<O> || std::is_void_v<T>) {
    return std::is_void_v<O> && std::is_void_v<T>;
  } else if constexpr (std::is_function_v<O> || std::is_function_v<T>) {
    return false;
  } else {
    return same<O, T>();
  }
}

template <typename T>
constexpr bool is_opaque_handle = false;
template <>
inline constexpr bool is_opaque_handle<ours::Context> = true;
template <>
inline constexpr bool is_opaque_handle<ours::Stream> = true;
template <>
inline constexpr bool is_opaque_handle<ours::Library> = true;
template <>
inline constexpr bool is_opaque_handle<ours::Kernel> = true;
template <>
inline constexpr bool is_opaque_handle<ours::Function> = true;

template <typename Ours, typename Theirs>
constexpr bool same_handle() {
  if constexpr (std::is_same_v<Ours, ours::Context>) return std::is_same_v<Theirs, CUcontext>;
  if constexpr (std::is_same_v<Ours, ours::Stream>) return std::is_same_v<Theirs, CUstream>;
  if constexpr (std::is_same_v<Ours, ours::Library>) return std::is_same_v<Theirs, CUlibrary>;
  if constexpr (std::is_same_v<Ours, ours::Kernel>) return std::is_same_v<Theirs, CUkernel>;
  return std::is_same_v<Theirs, CUfunction>;
}

template <typename Ours, typename Theirs>
constexpr bool same() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (is_opaque_handle<Ours>) {
    return same_handle<Ours, Theirs>();
  } else if constexpr (std::is_enum_v<Theirs>) {
    return std::is_same_v<Ours, int> && sizeof(Theirs) == sizeof(int);
  } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {  // unsigned long, unsigned long long
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return same_pointee<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
  } else {
    return false;
  }
}

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};

template <typename OurResult, typename... OurArgs, typename TheirResult, typename... TheirArgs>
struct SameFunction<OurResult(OurArgs...), TheirResult(TheirArgs...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(OurArgs) != sizeof...(TheirArgs)) {
      return false;
    } else {
      return same<OurResult, TheirResult>() && (same<OurArgs, TheirArgs>() && ...);
    }
  }
  static constexpr bool value = compare();
};

namespace {
using ours::Context;
using ours::Device;
using ours::DevicePtr;
using ours::Function;
using ours::Kernel;
using ours::LaunchConfig;
using ours::Library;
using ours::Result;
using ours::Stream;
using ours::TensorMap;

// Where cuda.h renames a function (`#define cuMemAlloc cuMemAlloc_v2`), expanding `name` gives the exported symbol.
#define TEXT_OF_EXPANDED(name) #name
#define TEXT(name) TEXT_OF_EXPANDED(name)
#define CHECK(name, symbol, ...)                                                                                \
  static_assert(SameFunction<__VA_ARGS__, std::remove_pointer_t<decltype(&::name)>>::value, "type of " symbol); \
  static_assert(std::string_view(TEXT(name)) == symbol, "symbol of " symbol);
FA3_DRIVER_FUNCTIONS(CHECK)

#define SAME_VALUE(our_name, their_name) \
  static_assert(static_cast<long long>(ours::our_name) == static_cast<long long>(their_name), #their_name)
SAME_VALUE(kSuccess, CUDA_SUCCESS);
SAME_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(kMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(kPreferredSharedMemoryCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_VALUE(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(kCaptureStatusNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(kTensorFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME_VALUE(kTensorBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME_VALUE(kTensorUint8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME_VALUE(kInterleaveNone, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME_VALUE(kSwizzleNone, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME_VALUE(kSwizzle32B, CU_TENSOR_MAP_SWIZZLE_32B);
SAME_VALUE(kSwizzle64B, CU_TENSOR_MAP_SWIZZLE_64B);
SAME_VALUE(kSwizzle128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME_VALUE(kL2Promotion128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME_VALUE(kOobFillZero, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

#define SAME_MEMBER(our_name, their_name)                                                     \
  static_assert(offsetof(LaunchConfig, our_name) == offsetof(CUlaunchConfig, their_name) &&   \
                    sizeof(LaunchConfig::our_name) % sizeof(CUlaunchConfig::their_name) == 0, \
                #their_name)
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
SAME_MEMBER(grid, gridDimX);
SAME_MEMBER(block, blockDimX);
SAME_MEMBER(smem_bytes, sharedMemBytes);
SAME_MEMBER(stream, hStream);
SAME_MEMBER(attributes, attrs);
SAME_MEMBER(num_attributes, numAttrs);
static_assert(offsetof(CUlaunchConfig, gridDimZ) == 8 && offsetof(CUlaunchConfig, blockDimZ) == 20);
}  // namespace

int main() { return 0; }

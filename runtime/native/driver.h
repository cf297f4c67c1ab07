// The part of the CUDA driver API that the library uses, declared by hand so that building it needs no CUDA toolkit.
// tests/native/driver_header.cpp holds every line of this file against NVIDIA's public cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fa3::cuda {

using Result = int;
using Device = int;
using DevicePtr = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Function = struct FunctionTag*;

constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kNoDevice = 100;

constexpr int kMultiprocessorCount = 16;  // device attributes
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

constexpr int kMaxDynamicSharedSizeBytes = 8;  // kernel attributes
constexpr int kPreferredSharedMemoryCarveout = 9;

constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureStatusNone = 0;

constexpr int kTensorFloat16 = 6;
constexpr int kTensorBfloat16 = 9;
constexpr int kTensorUint8 = 0;
constexpr int kInterleaveNone = 0;
constexpr int kSwizzleNone = 0;
constexpr int kSwizzle32B = 1;
constexpr int kSwizzle64B = 2;
constexpr int kSwizzle128B = 3;
constexpr int kL2Promotion128B = 2;
constexpr int kOobFillZero = 0;

struct alignas(128) TensorMap {  // 64 in CUDA 12
  uint64_t opaque[16];
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned smem_bytes;
  Stream stream;
  void* attributes;
  unsigned num_attributes;
};

// X(name, exported symbol, type).  Symbols differ from names where cuda.h renames a function to a later version.
#define FA3_DRIVER_FUNCTIONS(X)                                                                                       \
  X(cuInit, "cuInit", Result(unsigned))                                                                               \
  X(cuGetErrorName, "cuGetErrorName", Result(Result, const char**))                                                   \
  X(cuGetErrorString, "cuGetErrorString", Result(Result, const char**))                                               \
  X(cuDeviceGetCount, "cuDeviceGetCount", Result(int*))                                                               \
  X(cuDeviceGet, "cuDeviceGet", Result(Device*, int))                                                                 \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", Result(int*, int, Device))                                          \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", Result(Context*, Device))                                   \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", Result(Context))                                                         \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", Result(Context*))                                                          \
  X(cuLibraryLoadData, "cuLibraryLoadData",                                                                           \
    Result(Library*, const void*, int*, void**, unsigned, int*, void**, unsigned))                                    \
  X(cuLibraryUnload, "cuLibraryUnload", Result(Library))                                                              \
  X(cuLibraryGetKernel, "cuLibraryGetKernel", Result(Kernel*, Library, const char*))                                  \
  X(cuKernelSetAttribute, "cuKernelSetAttribute", Result(int, int, Kernel, Device))                                   \
  X(cuKernelGetFunction, "cuKernelGetFunction", Result(Function*, Kernel))                                            \
  X(cuMemAlloc, "cuMemAlloc_v2", Result(DevicePtr*, size_t))                                                          \
  X(cuMemsetD32Async, "cuMemsetD32Async", Result(DevicePtr, unsigned, size_t, Stream))                                \
  X(cuStreamCreate, "cuStreamCreate", Result(Stream*, unsigned))                                                      \
  X(cuStreamSynchronize, "cuStreamSynchronize", Result(Stream))                                                       \
  X(cuStreamGetId, "cuStreamGetId", Result(Stream, unsigned long long*))                                              \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", Result(Stream, int*))                                                 \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", Result(int*))                             \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                                 \
    Result(TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, \
           int, int, int))                                                                                            \
  X(cuLaunchKernelEx, "cuLaunchKernelEx", Result(const LaunchConfig*, Function, void**, void**))

struct Driver {
#define FA3_MEMBER(name, symbol, ...) std::add_pointer_t<__VA_ARGS__> name;
  FA3_DRIVER_FUNCTIONS(FA3_MEMBER)
#undef FA3_MEMBER
};

// The driver, opened and initialised by the first caller.  Throws FA3_NO_DRIVER, or FA3_FORKED in a child of a process
// that had used it.
const Driver& driver();

// driver(), or nullptr where the process has not used it or must not.
const Driver* driver_in_use() noexcept;

// Throws unless `result` is success; `call` is the function's name.
void check(const Driver& driver, Result result, const char* call);

}  // namespace fa3::cuda

// One GPU as the library uses it: its primary context, its facts, and the tile counters in its memory.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "driver.h"

namespace fa3 {

constexpr int kMaxDevices = 64;

// Hands out zeroed int32s in device memory, each to one stream or one captured launch and never again; nothing is
// freed.
class TileCounters {
 public:
  // The counter of the stream with this cuStreamGetId.  Launches of one stream follow each other, so they share it.
  cuda::DevicePtr of_stream(const cuda::Driver& driver, uint64_t stream_id);
  // A counter that nobody else gets: a captured launch may run on any stream, beside any other.
  cuda::DevicePtr fresh(const cuda::Driver& driver);
  // Allocates ahead.
  void reserve(const cuda::Driver& driver);

 private:
  cuda::DevicePtr take(const cuda::Driver& driver);
  void allocate(const cuda::Driver& driver);

  std::mutex mutex_;
  std::unordered_map<uint64_t, cuda::DevicePtr> streams_;
  cuda::Stream fill_stream_ = nullptr;
  cuda::DevicePtr next_ = 0;
  uint32_t left_ = 0;
};

struct Device {
  int ordinal;
  cuda::Device handle;
  cuda::Context context;  // the primary one, retained until the process ends
  int num_sms;
  int capability_major;
  int capability_minor;
  TileCounters counters;
};

// The device of that CUDA ordinal; its primary context is retained by the first call.  Throws FA3_BAD_DEVICE.
Device& device(const cuda::Driver& driver, int ordinal);

// Makes a device's context current for a scope.
class ScopedContext {
 public:
  ScopedContext(const cuda::Driver& driver, const Device& device);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const cuda::Driver& driver_;
};

// Allows loading and allocating for a scope while some stream captures: neither becomes part of the graph.
class ScopedRelaxedCapture {
 public:
  explicit ScopedRelaxedCapture(const cuda::Driver& driver);
  ~ScopedRelaxedCapture();
  ScopedRelaxedCapture(const ScopedRelaxedCapture&) = delete;
  ScopedRelaxedCapture& operator=(const ScopedRelaxedCapture&) = delete;

 private:
  const cuda::Driver& driver_;
  int mode_ = cuda::kCaptureModeRelaxed;
};

}  // namespace fa3

#include "device.h"

#include <atomic>

#include "error.h"

namespace fa3 {

namespace {

// Counters lie a memory sector apart, so that the atomics of two streams do not meet.
constexpr uint32_t kCounterBytes = 32;
constexpr uint32_t kSlabCounters = 4096;

std::atomic<Device*> devices[kMaxDevices];
std::mutex retaining;

int attribute(const cuda::Driver& driver, int which, cuda::Device handle) {
  int value = 0;
  cuda::check(driver, driver.cuDeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute");
  return value;
}

Device* retain(const cuda::Driver& driver, int ordinal) {
  auto device = new Device{};
  try {
    device->ordinal = ordinal;
    cuda::check(driver, driver.cuDeviceGet(&device->handle, ordinal), "cuDeviceGet");
    device->num_sms = attribute(driver, cuda::kMultiprocessorCount, device->handle);
    device->capability_major = attribute(driver, cuda::kComputeCapabilityMajor, device->handle);
    device->capability_minor = attribute(driver, cuda::kComputeCapabilityMinor, device->handle);
    cuda::check(driver, driver.cuDevicePrimaryCtxRetain(&device->context, device->handle), "cuDevicePrimaryCtxRetain");
  } catch (...) {
    delete device;
    throw;
  }
  return device;
}

}  // namespace

Device& device(const cuda::Driver& driver, int ordinal) {
  const bool in_table = ordinal >= 0 && ordinal < kMaxDevices;
  if (in_table) {
    if (Device* known = devices[ordinal].load(std::memory_order_acquire)) return *known;
  }
  int count = 0;
  cuda::check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!in_table || ordinal >= count)
    fail(FA3_BAD_DEVICE, "device %d does not exist; this machine has %d", ordinal, count);
  std::lock_guard<std::mutex> lock(retaining);
  if (Device* known = devices[ordinal].load(std::memory_order_acquire)) return *known;
  Device* made = retain(driver, ordinal);
  devices[ordinal].store(made, std::memory_order_release);
  return *made;
}

cuda::DevicePtr TileCounters::of_stream(const cuda::Driver& driver, uint64_t stream_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(stream_id);
  if (found != streams_.end()) return found->second;
  const cuda::DevicePtr counter = take(driver);
  streams_.emplace(stream_id, counter);
  return counter;
}

cuda::DevicePtr TileCounters::fresh(const cuda::Driver& driver) {
  std::lock_guard<std::mutex> lock(mutex_);
  return take(driver);
}

void TileCounters::reserve(const cuda::Driver& driver) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_ == 0) allocate(driver);
}

cuda::DevicePtr TileCounters::take(const cuda::Driver& driver) {
  if (left_ == 0) allocate(driver);
  const cuda::DevicePtr counter = next_;
  next_ += kCounterBytes;
  left_--;
  return counter;
}

// Zeroes on a stream of its own: the default stream may not be used while another captures.
void TileCounters::allocate(const cuda::Driver& driver) {
  const ScopedRelaxedCapture relaxed(driver);
  if (fill_stream_ == nullptr) {
    cuda::check(driver, driver.cuStreamCreate(&fill_stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
  }
  constexpr size_t kBytes = size_t{kCounterBytes} * kSlabCounters;
  cuda::DevicePtr slab = 0;
  cuda::check(driver, driver.cuMemAlloc(&slab, kBytes), "cuMemAlloc");
  cuda::check(driver, driver.cuMemsetD32Async(slab, 0, kBytes / 4, fill_stream_), "cuMemsetD32Async");
  cuda::check(driver, driver.cuStreamSynchronize(fill_stream_), "cuStreamSynchronize");
  next_ = slab;
  left_ = kSlabCounters;
}

ScopedContext::ScopedContext(const cuda::Driver& driver, const Device& device) : driver_(driver) {
  cuda::check(driver, driver.cuCtxPushCurrent(device.context), "cuCtxPushCurrent");
}

ScopedContext::~ScopedContext() {
  cuda::Context popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
}

ScopedRelaxedCapture::ScopedRelaxedCapture(const cuda::Driver& driver) : driver_(driver) {
  cuda::check(driver, driver.cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

ScopedRelaxedCapture::~ScopedRelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace fa3

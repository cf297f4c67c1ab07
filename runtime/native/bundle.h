// A bundle in memory, and its kernels on the devices that use them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "spec.h"

namespace fa3 {

// A cubin and its handles: loaded into the driver once, prepared once a device, by whoever needs it first.
class LoadedKernel {
 public:
  // The kernel, prepared for launches on `device`, whose context must be current.
  cuda::Kernel on(const cuda::Driver& driver, const Device& device, const Spec& spec, const std::string& arch) const {
    if (!prepared_[device.ordinal].load(std::memory_order_acquire)) prepare(driver, device, spec, arch);
    return kernel_;
  }
  void unload() noexcept;

  std::vector<char> cubin;

 private:
  void prepare(const cuda::Driver& driver, const Device& device, const Spec& spec, const std::string& arch) const;

  mutable std::mutex mutex_;
  mutable cuda::Library library_ = nullptr;
  mutable cuda::Kernel kernel_ = nullptr;  // serves all devices
  mutable std::atomic<bool> prepared_[kMaxDevices] = {};
};

}  // namespace fa3

struct fa3_kernel {
  fa3::Spec spec;
  const std::string* arch;  // the bundle's
  fa3::LoadedKernel loaded;
};

struct fa3_bundle {
  std::string path;
  std::string arch;
  std::vector<std::unique_ptr<fa3_kernel>> kernels;  // sorted by name

  // Throws FA3_NOT_FOUND or FA3_BAD_BUNDLE.
  static std::unique_ptr<fa3_bundle> open(const std::string& path);
  const fa3_kernel& find(const std::string& name) const;
};

#include "bundle.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "error.h"
#include "index.h"

namespace fa3 {

namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

template <typename Bytes>
Bytes read_file(const std::string& path, fa3_status missing) {
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) fail(missing, "cannot read %s: %s", path.c_str(), std::strerror(errno));
  Bytes bytes;
  char block[1 << 16];
  while (const size_t count = std::fread(block, 1, sizeof block, file.get()))
    bytes.insert(bytes.end(), block, block + count);
  if (std::ferror(file.get())) fail(FA3_BAD_BUNDLE, "cannot read %s: %s", path.c_str(), std::strerror(errno));
  return bytes;
}

std::vector<char> read_cubin(const std::string& folder, const Spec& spec) {
  auto cubin = read_file<std::vector<char>>(folder + "/" + spec.cubin_path, FA3_BAD_BUNDLE);
  if (cubin.size() != spec.cubin_bytes) {
    fail(FA3_BAD_BUNDLE, "%s/%s has %zu bytes, but index.txt says %llu: the bundle was not copied whole; copy it again",
         folder.c_str(), spec.cubin_path.c_str(), cubin.size(), static_cast<unsigned long long>(spec.cubin_bytes));
  }
  return cubin;
}

// sm90a runs on 9.0 only; sm90, without a letter, on 9.x from 9.0 up.
void check_capability(const Device& device, const std::string& arch, const std::string& kernel) {
  int number = 0;
  char feature = '\0';
  if (std::sscanf(arch.c_str(), "sm%d%c", &number, &feature) < 1)
    fail(FA3_BAD_BUNDLE, "'%s' is no architecture", arch.c_str());
  const int major = number / 10, minor = number % 10;
  const bool runs = device.capability_major == major &&
                    (feature == '\0' ? device.capability_minor >= minor : device.capability_minor == minor);
  if (runs) return;
  fail(FA3_BAD_DEVICE, "device %d has compute capability %d.%d; %s (%s) needs %d.%d", device.ordinal,
       device.capability_major, device.capability_minor, kernel.c_str(), arch.c_str(), major, minor);
}

}  // namespace

void LoadedKernel::prepare(const cuda::Driver& driver, const Device& device, const Spec& spec,
                           const std::string& arch) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (prepared_[device.ordinal].load(std::memory_order_acquire)) return;
  check_capability(device, arch, spec.name);
  const ScopedRelaxedCapture relaxed(driver);
  if (library_ == nullptr) {
    cuda::check(driver, driver.cuLibraryLoadData(&library_, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                "cuLibraryLoadData");
  }
  if (kernel_ == nullptr) {
    cuda::check(driver, driver.cuLibraryGetKernel(&kernel_, library_, spec.symbol.c_str()), "cuLibraryGetKernel");
  }
  auto set = [&](int attribute, int value) {
    cuda::check(driver, driver.cuKernelSetAttribute(attribute, value, kernel_, device.handle), "cuKernelSetAttribute");
  };
  set(cuda::kMaxDynamicSharedSizeBytes, static_cast<int>(spec.smem_bytes));
  set(cuda::kPreferredSharedMemoryCarveout, 100);  // percent: data come by TMA, a larger L1 would serve nothing
  // Drivers load lazily; asking for the function loads the code into the context now.
  cuda::Function function = nullptr;
  cuda::check(driver, driver.cuKernelGetFunction(&function, kernel_), "cuKernelGetFunction");
  prepared_[device.ordinal].store(true, std::memory_order_release);
}

void LoadedKernel::unload() noexcept {
  const cuda::Driver* driver = cuda::driver_in_use();
  if (driver != nullptr && library_ != nullptr) driver->cuLibraryUnload(library_);
}

}  // namespace fa3

std::unique_ptr<fa3_bundle> fa3_bundle::open(const std::string& path) {
  auto bundle = std::make_unique<fa3_bundle>();
  bundle->path = path;
  fa3::Index index = fa3::parse_index(fa3::read_file<std::string>(path + "/index.txt", FA3_NOT_FOUND));
  bundle->arch = std::move(index.arch);
  for (fa3::Spec& spec : index.kernels) {
    auto kernel = std::make_unique<fa3_kernel>();
    kernel->loaded.cubin = fa3::read_cubin(path, spec);
    kernel->spec = std::move(spec);
    kernel->arch = &bundle->arch;
    bundle->kernels.push_back(std::move(kernel));
  }
  return bundle;
}

const fa3_kernel& fa3_bundle::find(const std::string& name) const {
  constexpr size_t kShown = 8;
  const auto at =
      std::lower_bound(kernels.begin(), kernels.end(), name,
                       [](const auto& kernel, const std::string& wanted) { return kernel->spec.name < wanted; });
  if (at != kernels.end() && (*at)->spec.name == name) return **at;
  std::string known;
  for (size_t i = 0; i < std::min(kernels.size(), kShown); i++) known += (i == 0 ? "" : ", ") + kernels[i]->spec.name;
  if (kernels.size() > kShown) known += ", ...";
  fa3::fail(FA3_NOT_FOUND, "the bundle in %s has no kernel '%s'; it has %zu: %s", path.c_str(), name.c_str(),
            kernels.size(), known.c_str());
}

#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

#include "error.h"

namespace fa3::cuda {

namespace {

constexpr char kForked[] =
    "CUDA was initialised before this process was forked, and a forked child cannot use it: start the process by spawn "
    "instead, or do not touch the GPU before the fork";

Driver functions;
std::atomic<const Driver*> ready{nullptr};
std::atomic<bool> forked{false};
std::mutex opening;        // held over a fork, so that a child never finds the driver half opened
bool initialised = false;  // cuInit succeeded; guarded by `opening`

void before_fork() { opening.lock(); }
void after_fork_in_parent() { opening.unlock(); }
void after_fork_in_child() {
  if (initialised) forked.store(true);
  opening.unlock();
}

void open_library() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(FA3_NO_DRIVER,
         "no NVIDIA driver: %s; kernels run on a machine with a GPU and its driver (nvidia-smi works there)",
         dlerror());
  }
  auto find = [library](const char* symbol) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) {
      fail(FA3_NO_DRIVER, "the NVIDIA driver has no %s: it is older than CUDA 12.0; update it", symbol);
    }
    return address;
  };
#define FA3_RESOLVE(name, symbol, ...) functions.name = reinterpret_cast<decltype(functions.name)>(find(symbol));
  FA3_DRIVER_FUNCTIONS(FA3_RESOLVE)
#undef FA3_RESOLVE
}

const Driver& open() {
  static std::once_flag watch_forks;
  std::call_once(watch_forks, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
  std::lock_guard<std::mutex> lock(opening);
  if (const Driver* driver = ready.load(std::memory_order_acquire)) return *driver;
  open_library();
  const Result result = functions.cuInit(0);
  initialised = result == kSuccess;
  // Another user of CUDA in the parent (a framework, say) shows in its child as "not initialised".
  if (result == kNotInitialized)
    fail(FA3_FORKED, "cuInit failed with CUDA_ERROR_NOT_INITIALIZED; most likely %s", kForked);
  if (result == kNoDevice) fail(FA3_NO_DRIVER, "the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?)");
  check(functions, result, "cuInit");
  ready.store(&functions, std::memory_order_release);
  return functions;
}

}  // namespace

const Driver& driver() {
  if (forked.load(std::memory_order_relaxed)) fail(FA3_FORKED, "%s", kForked);
  const Driver* driver = ready.load(std::memory_order_acquire);
  return driver != nullptr ? *driver : open();
}

const Driver* driver_in_use() noexcept { return forked.load() ? nullptr : ready.load(std::memory_order_acquire); }

void check(const Driver& driver, Result result, const char* call) {
  if (result == kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  const fa3_status status = result == kOutOfMemory ? FA3_OUT_OF_MEMORY : FA3_DRIVER_ERROR;
  fail(status, "%s failed: %s (%d), %s", call, name != nullptr ? name : "unknown error", result,
       text != nullptr ? text : "no description");
}

}  // namespace fa3::cuda

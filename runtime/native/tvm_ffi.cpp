// libfa3 for callers that speak TVM-FFI (Python among them).  Uses TVM-FFI's C interface only, which is stable.
//
//     load_bundle(path: str) -> int
//     kernel(bundle: int, name: str) -> int
//     warm(kernel: int, device: int) -> None
//     num_sms(device: int) -> int
//     launch(kernel: int, sm_margin: int, *scalars: float, *tensors: Tensor | None) -> None
//     describe(kernel: int, num_sms: int, sm_margin: int, *scalars: float, *tensors: Tensor | None) -> str
//
// Bundles and kernels are numbers here and live until the process ends.  `launch` enqueues on TVM-FFI's current stream
// of the tensors' device, which its Python package sets from torch's.  `describe` takes tensors on any device.
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fa3.h"

namespace {

struct Raised {};  // an error is set in TVM-FFI

[[noreturn]] void raise(const char* kind, const std::string& message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message.c_str());
  throw Raised{};
}

void check(fa3_status status) {
  if (status == FA3_OK) return;
  const char* kind = "RuntimeError";
  if (status == FA3_BAD_VALUE || status == FA3_BAD_BUNDLE || status == FA3_NOT_FOUND) kind = "ValueError";
  if (status == FA3_BAD_TYPE) kind = "TypeError";
  if (status == FA3_OUT_OF_MEMORY) kind = "MemoryError";
  raise(kind, fa3_last_error());
}

template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const Raised&) {
    return -1;
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
    return -1;
  }
}

// Numbers for objects that are never freed.  Looking one up takes no lock.
template <typename Object, size_t Capacity>
class Handles {
 public:
  int64_t add(Object* object, const char* what) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = numbers_.find(object);
    if (found != numbers_.end()) return found->second;
    if (used_ == Capacity) raise("RuntimeError", std::string("too many ") + what + "s in one process");
    const auto number = static_cast<int64_t>(used_);
    numbers_.emplace(object, number);
    objects_[used_++].store(object, std::memory_order_release);
    return number;
  }

  Object* get(int64_t number, const char* what) const {
    Object* object = nullptr;
    if (number >= 0 && number < static_cast<int64_t>(Capacity))
      object = objects_[number].load(std::memory_order_acquire);
    if (object == nullptr)
      raise("ValueError", std::string(what) + " is " + std::to_string(number) + ", which is no handle of one");
    return object;
  }

 private:
  std::mutex mutex_;
  size_t used_ = 0;
  std::unordered_map<const Object*, int64_t> numbers_;
  std::atomic<Object*> objects_[Capacity] = {};
};

// Never destroyed: threads may still launch while the process ends.
auto& bundles = *new Handles<fa3_bundle, 1 << 12>;
auto& kernels = *new Handles<const fa3_kernel, 1 << 16>;

struct Arguments {
  const TVMFFIAny* values;
  int32_t count;

  void expect(int32_t wanted) const {
    if (count != wanted)
      raise("TypeError", "takes " + std::to_string(wanted) + " arguments, got " + std::to_string(count));
  }

  int64_t integer(int32_t i, const char* name) const {
    if (values[i].type_index != kTVMFFIInt) raise("TypeError", std::string(name) + " must be an int");
    return values[i].v_int64;
  }

  int32_t integer32(int32_t i, const char* name) const {
    const int64_t value = integer(i, name);
    if (value < INT32_MIN || value > INT32_MAX)
      raise("ValueError", std::string(name) + " is " + std::to_string(value) + ", beyond 32 bits");
    return static_cast<int32_t>(value);
  }

  double number(int32_t i, const char* name) const {
    if (values[i].type_index == kTVMFFIFloat) return values[i].v_float64;
    if (values[i].type_index == kTVMFFIInt) return static_cast<double>(values[i].v_int64);
    raise("TypeError", std::string(name) + " must be a float");
  }

  std::string text(int32_t i, const char* name) const {
    const TVMFFIAny& value = values[i];
    if (value.type_index == kTVMFFIRawStr) return value.v_c_str;
    if (value.type_index == kTVMFFISmallStr) return {value.v_bytes, value.small_str_len};
    if (value.type_index != kTVMFFIStr) raise("TypeError", std::string(name) + " must be a str");
    const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(value.v_obj);
    return {bytes->data, bytes->size};
  }

  // nullptr for None
  const DLTensor* tensor(int32_t i, const char* name) const {
    const TVMFFIAny& value = values[i];
    if (value.type_index == kTVMFFINone) return nullptr;
    if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
    if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
    raise("TypeError", std::string(name) + " must be a tensor or None");
  }
};

fa3_dtype dtype(const DLDataType& type) {
  if (type.lanes != 1) return FA3_OTHER;
  if (type.code == kDLBfloat && type.bits == 16) return FA3_BF16;
  if (type.code == kDLFloat && type.bits == 16) return FA3_FP16;
  if (type.code == kDLFloat && type.bits == 32) return FA3_FP32;
  if (type.code == kDLFloat8_e4m3fn && type.bits == 8) return FA3_E4M3;
  if (type.code == kDLInt && type.bits == 32) return FA3_INT32;
  return FA3_OTHER;
}

constexpr int32_t kMaxTensors = 32;
constexpr int32_t kMaxScalars = 32;

// A call of a kernel from arguments `sm_margin, *scalars, *tensors`, the first at `first`.
class Call {
 public:
  Call(const fa3_kernel* kernel, const Arguments& arguments, int32_t first, bool on_gpu) {
    int32_t next = first;
    call_.size = sizeof call_;
    call_.sm_margin = arguments.integer32(next++, "sm_margin");
    for (; const char* name = fa3_kernel_scalar(kernel, call_.num_scalars); call_.num_scalars++) {
      if (next == arguments.count || call_.num_scalars == kMaxScalars) missing(name);
      scalars_[call_.num_scalars] = arguments.number(next++, name);
    }
    for (; const char* name = fa3_kernel_tensor(kernel, call_.num_tensors); call_.num_tensors++) {
      if (next == arguments.count || call_.num_tensors == kMaxTensors) missing(name);
      add_tensor(arguments.tensor(next++, name), name, on_gpu);
    }
    if (next != arguments.count) raise("TypeError", std::string(fa3_kernel_name(kernel)) + " got too many arguments");
    call_.scalars = scalars_;
    call_.tensors = pointers_;
  }

  fa3_call& get() { return call_; }

  int32_t device() const {
    for (int32_t i = 0; i < call_.num_tensors; i++) {
      if (pointers_[i] != nullptr) return pointers_[i]->device;
    }
    return 0;
  }

 private:
  [[noreturn]] static void missing(const char* name) { raise("TypeError", std::string(name) + " is missing"); }

  void add_tensor(const DLTensor* tensor, const char* name, bool on_gpu) {
    const int32_t i = call_.num_tensors;
    pointers_[i] = nullptr;
    if (tensor == nullptr) return;
    if (on_gpu && tensor->device.device_type != kDLCUDA)
      raise("ValueError", std::string(name) + " is not on a CUDA device");
    tensors_[i] = {static_cast<char*>(tensor->data) + tensor->byte_offset,
                   tensor->shape,
                   tensor->strides,
                   tensor->ndim,
                   dtype(tensor->dtype),
                   tensor->device.device_id,
                   0};
    pointers_[i] = &tensors_[i];
  }

  fa3_call call_{};
  double scalars_[kMaxScalars];
  fa3_tensor tensors_[kMaxTensors];
  const fa3_tensor* pointers_[kMaxTensors];
};

void return_int(TVMFFIAny* result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
}

void return_text(TVMFFIAny* result, const std::string& text) {
  const TVMFFIByteArray bytes{text.data(), text.size()};
  if (TVMFFIStringFromByteArray(&bytes, result) != 0) throw Raised{};
}

}  // namespace

#define FA3_EXPORT(name)                                                                 \
  extern "C" FA3_API int __tvm_ffi_##name(void*, const TVMFFIAny* values, int32_t count, \
                                          [[maybe_unused]] TVMFFIAny* result)

FA3_EXPORT(load_bundle) {
  return guarded([&] {
    const Arguments arguments{values, count};
    arguments.expect(1);
    fa3_bundle* bundle = nullptr;
    check(fa3_bundle_open(arguments.text(0, "path").c_str(), &bundle));
    return_int(result, bundles.add(bundle, "bundle"));
  });
}

FA3_EXPORT(kernel) {
  return guarded([&] {
    const Arguments arguments{values, count};
    arguments.expect(2);
    const fa3_kernel* kernel = nullptr;
    const fa3_bundle* bundle = bundles.get(arguments.integer(0, "bundle"), "bundle");
    check(fa3_bundle_find(bundle, arguments.text(1, "name").c_str(), &kernel));
    return_int(result, kernels.add(kernel, "kernel"));
  });
}

FA3_EXPORT(warm) {
  return guarded([&] {
    const Arguments arguments{values, count};
    arguments.expect(2);
    check(fa3_warm(kernels.get(arguments.integer(0, "kernel"), "kernel"), arguments.integer32(1, "device")));
  });
}

FA3_EXPORT(num_sms) {
  return guarded([&] {
    const Arguments arguments{values, count};
    arguments.expect(1);
    int32_t num_sms = 0;
    check(fa3_num_sms(arguments.integer32(0, "device"), &num_sms));
    return_int(result, num_sms);
  });
}

FA3_EXPORT(launch) {
  return guarded([&] {
    const Arguments arguments{values, count};
    if (count < 2) raise("TypeError", "launch takes a kernel, sm_margin, the scalars and the tensors");
    const fa3_kernel* kernel = kernels.get(arguments.integer(0, "kernel"), "kernel");
    Call call(kernel, arguments, 1, true);
    call.get().stream = TVMFFIEnvGetStream(kDLCUDA, call.device());
    check(fa3_launch(kernel, &call.get()));
  });
}

FA3_EXPORT(describe) {
  return guarded([&] {
    const Arguments arguments{values, count};
    if (count < 3) raise("TypeError", "describe takes a kernel, num_sms, sm_margin, the scalars and the tensors");
    const fa3_kernel* kernel = kernels.get(arguments.integer(0, "kernel"), "kernel");
    const int32_t num_sms = arguments.integer32(1, "num_sms");
    Call call(kernel, arguments, 2, false);
    size_t needed = 0;
    check(fa3_describe(kernel, &call.get(), num_sms, nullptr, 0, &needed));
    std::string text(needed, '\0');
    check(fa3_describe(kernel, &call.get(), num_sms, text.data(), text.size(), nullptr));
    text.pop_back();  // the closing 0
    return_text(result, text);
  });
}

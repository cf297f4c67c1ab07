// The C functions of fa3.h.
#include <algorithm>
#include <cstring>

#include "bundle.h"
#include "error.h"
#include "fa3.h"
#include "launch.h"

namespace {

void not_null(const void* pointer, const char* argument) {
  if (pointer == nullptr) fa3::fail(FA3_BAD_VALUE, "%s is NULL", argument);
}

}  // namespace

extern "C" {

int32_t fa3_api_version(void) { return FA3_API_VERSION; }

const char* fa3_last_error(void) { return fa3::last_error(); }

fa3_status fa3_bundle_open(const char* path, fa3_bundle** bundle) {
  return fa3::guarded([&] {
    not_null(path, "path");
    not_null(bundle, "bundle");
    *bundle = fa3_bundle::open(path).release();
  });
}

void fa3_bundle_close(fa3_bundle* bundle) {
  if (bundle == nullptr) return;
  for (auto& kernel : bundle->kernels) kernel->loaded.unload();
  delete bundle;
}

size_t fa3_bundle_num_kernels(const fa3_bundle* bundle) { return bundle->kernels.size(); }

const fa3_kernel* fa3_bundle_kernel(const fa3_bundle* bundle, size_t index) {
  return index < bundle->kernels.size() ? bundle->kernels[index].get() : nullptr;
}

fa3_status fa3_bundle_find(const fa3_bundle* bundle, const char* name, const fa3_kernel** kernel) {
  return fa3::guarded([&] {
    not_null(bundle, "bundle");
    not_null(name, "name");
    not_null(kernel, "kernel");
    *kernel = &bundle->find(name);
  });
}

const char* fa3_kernel_name(const fa3_kernel* kernel) { return kernel->spec.name.c_str(); }

const char* fa3_kernel_tensor(const fa3_kernel* kernel, size_t index) {
  return index < kernel->spec.tensors.size() ? kernel->spec.tensors[index].role->tensor : nullptr;
}

const char* fa3_kernel_scalar(const fa3_kernel* kernel, size_t index) {
  return index < kernel->spec.scalars.size() ? kernel->spec.scalars[index].c_str() : nullptr;
}

int fa3_kernel_tensor_is_optional(const fa3_kernel* kernel, size_t index) {
  return index < kernel->spec.tensors.size() && kernel->spec.tensors[index].optional ? 1 : 0;
}

fa3_status fa3_warm(const fa3_kernel* kernel, int32_t device) {
  return fa3::guarded([&] {
    not_null(kernel, "kernel");
    fa3::warm(*kernel, device);
  });
}

fa3_status fa3_num_sms(int32_t device, int32_t* num_sms) {
  return fa3::guarded([&] {
    not_null(num_sms, "num_sms");
    *num_sms = fa3::device(fa3::cuda::driver(), device).num_sms;
  });
}

fa3_status fa3_launch(const fa3_kernel* kernel, const fa3_call* call) {
  return fa3::guarded([&] {
    not_null(kernel, "kernel");
    not_null(call, "call");
    fa3::launch(*kernel, *call);
  });
}

fa3_status fa3_describe(const fa3_kernel* kernel, const fa3_call* call, int32_t num_sms, char* text, size_t capacity,
                        size_t* needed) {
  return fa3::guarded([&] {
    not_null(kernel, "kernel");
    not_null(call, "call");
    const std::string full = fa3::describe(*kernel, *call, num_sms);
    if (needed != nullptr) *needed = full.size() + 1;
    if (text == nullptr || capacity == 0) return;
    const size_t count = std::min(full.size(), capacity - 1);
    std::memcpy(text, full.data(), count);
    text[count] = '\0';
  });
}

}  // extern "C"

// From a checked call to cuLaunchKernelEx.
#pragma once

#include "bundle.h"
#include "fa3.h"

namespace fa3 {

void launch(const fa3_kernel& kernel, const fa3_call& call);
void warm(const fa3_kernel& kernel, int32_t device);

// The text of fa3_describe.
std::string describe(const fa3_kernel& kernel, const fa3_call& call, int32_t num_sms);

}  // namespace fa3

#include "call.h"

#include <algorithm>
#include <cmath>

#include "error.h"

namespace fa3 {

namespace {

constexpr int64_t kMaxExtent = INT32_MAX;
// Kernels add 2^30 to the number of a tile that is done again (fa3gen/device/index.py, AGAIN); and a tile counter may run
// past the last tile by a few draws a CTA.
constexpr int64_t kMaxTiles = (1 << 30) - (1 << 16);
constexpr int64_t kMapAlignment = 16;                // bytes, of a tensor map's address and strides
constexpr int64_t kMaxMapStride = int64_t{1} << 40;  // bytes, exclusive

// K and V of the heads that are worked on together should stay in L2: half of the 60 MB of an H100.
constexpr int64_t kL2SectionBytes = 32 << 20;

constexpr double kLog2E = 1.4426950408889634;

// A tensor of the call with its strides filled in.
struct View {
  const char* name = nullptr;
  char* data = nullptr;
  bool present = false;
  bool empty = false;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
};

// One extent a meaning, and the tensor that gave it (nullptr: the kernel).
struct Extents {
  int64_t value[kNumDims];
  const char* from[kNumDims];
  bool bound[kNumDims] = {};

  int64_t operator[](Dim dim) const { return value[static_cast<int>(dim)]; }
  void bind(Dim dim, int64_t extent, const char* tensor) {
    const int i = static_cast<int>(dim);
    value[i] = extent;
    from[i] = tensor;
    bound[i] = true;
  }
};

void check_counts(const Spec& spec, const fa3_call& call) {
  if (call.size < sizeof(fa3_call)) {
    fail(FA3_BAD_VALUE, "call.size is %zu; set it to sizeof(fa3_call), %zu", call.size, sizeof(fa3_call));
  }
  if (call.num_tensors != static_cast<int>(spec.tensors.size()) ||
      call.num_scalars != static_cast<int>(spec.scalars.size())) {
    fail(FA3_BAD_VALUE, "%s takes %zu tensors and %zu scalars, the call gives %d and %d", spec.name.c_str(),
         spec.tensors.size(), spec.scalars.size(), call.num_tensors, call.num_scalars);
  }
  if (call.tensors == nullptr || call.scalars == nullptr) fail(FA3_BAD_VALUE, "call.tensors or call.scalars is NULL");
  if (call.sm_margin < 0) fail(FA3_BAD_VALUE, "sm_margin is %d; it must be 0 or more", call.sm_margin);
  if (reinterpret_cast<uintptr_t>(call.tile_counter) % 4 != 0)
    fail(FA3_BAD_VALUE, "tile_counter is not 4-byte aligned");
}

void read_shape(const Tensor& expected, const fa3_tensor& tensor, View& view) {
  const Role& role = *expected.role;
  if (tensor.ndim != role.ndim)
    fail(FA3_BAD_VALUE, "%s has %d dimensions; it must have %d", role.tensor, tensor.ndim, role.ndim);
  if (tensor.shape == nullptr) fail(FA3_BAD_VALUE, "%s has no shape", role.tensor);
  int64_t packed = 1;
  for (int axis = role.ndim - 1; axis >= 0; axis--) {
    const int64_t extent = tensor.shape[axis];
    if (extent < 0 || extent > kMaxExtent) {
      fail(FA3_BAD_VALUE, "%s: shape[%d] is %lld; it must be 0 to %lld", role.tensor, axis,
           static_cast<long long>(extent), static_cast<long long>(kMaxExtent));
    }
    view.shape[axis] = extent;
    view.empty |= extent == 0;
    view.strides[axis] = tensor.strides != nullptr ? tensor.strides[axis] : packed;
    // An overflow needs more elements than there is memory; only the strides of axes outside would be wrong.
    if (__builtin_mul_overflow(packed, extent, &packed)) packed = INT64_MAX;
  }
}

void read_tensor(const Tensor& expected, const fa3_tensor* tensor, View& view) {
  const Role& role = *expected.role;
  view.name = role.tensor;
  if (tensor == nullptr) {
    if (!expected.optional) fail(FA3_BAD_VALUE, "%s is missing", role.tensor);
    return;
  }
  view.present = true;
  if (tensor->dtype != expected.dtype) {
    fail(FA3_BAD_TYPE, "%s is %s; the kernel takes %s", role.tensor, dtype_name(tensor->dtype),
         dtype_name(expected.dtype));
  }
  read_shape(expected, *tensor, view);
  view.data = static_cast<char*>(tensor->data);
  if (view.data == nullptr && !view.empty) fail(FA3_BAD_VALUE, "%s has no data", role.tensor);
}

void check_extent(const View& view, int axis, Dim dim, Extents& extents) {
  const int i = static_cast<int>(dim);
  const int64_t extent = view.shape[axis];
  if (!extents.bound[i]) return extents.bind(dim, extent, view.name);
  if (extents.value[i] == extent) return;
  const char* owner = extents.from[i] != nullptr ? extents.from[i] : "the kernel";
  fail(FA3_BAD_VALUE, "%s: shape[%d] (%s) is %lld, but that of %s is %lld", view.name, axis, dim_name(dim),
       static_cast<long long>(extent), owner, static_cast<long long>(extents.value[i]));
}

Extents read_extents(const Spec& spec, const View* views) {
  Extents extents;
  extents.bind(Dim::HeadDim, spec.head_dim, nullptr);
  extents.bind(Dim::HeadDimV, spec.head_dim_v, nullptr);
  for (size_t i = 0; i < spec.tensors.size(); i++) {
    if (!views[i].present) continue;
    const Role& role = *spec.tensors[i].role;
    for (int axis = 0; axis < role.ndim; axis++) check_extent(views[i], axis, role.dims[axis], extents);
  }
  const int64_t heads_q = extents[Dim::HeadsQ], heads_k = extents[Dim::HeadsK];
  if (heads_q != 0 && (heads_k == 0 || heads_q % heads_k != 0)) {
    fail(FA3_BAD_VALUE, "q has %lld heads; that must be a multiple of the %lld of k", static_cast<long long>(heads_q),
         static_cast<long long>(heads_k));
  }
  return extents;
}

int32_t common_device(const Spec& spec, const fa3_call& call) {
  const fa3_tensor* first = nullptr;
  const char* first_name = nullptr;
  for (size_t i = 0; i < spec.tensors.size(); i++) {
    const fa3_tensor* tensor = call.tensors[i];
    if (tensor == nullptr) continue;
    if (first == nullptr) {
      first = tensor;
      first_name = spec.tensors[i].role->tensor;
    } else if (tensor->device != first->device) {
      fail(FA3_BAD_VALUE, "%s is on device %d, but %s is on device %d", spec.tensors[i].role->tensor, tensor->device,
           first_name, first->device);
    }
  }
  return first->device;
}

int64_t count_row_tiles(const Spec& spec, const Extents& extents) {
  return (extents[Dim::SeqlenQ] + spec.tile_m - 1) / spec.tile_m;
}

int64_t count_tiles(const Spec& spec, const Extents& extents) {
  int64_t tiles;  // below 2^62 before the last factor
  const bool overflow =
      __builtin_mul_overflow(count_row_tiles(spec, extents) * extents[Dim::HeadsQ], extents[Dim::Batch], &tiles);
  if (overflow || tiles > kMaxTiles) {
    fail(FA3_BAD_VALUE, "q is too large: batch * heads * ceil(seqlen_q / %lld) must be at most %lld",
         static_cast<long long>(spec.tile_m), static_cast<long long>(kMaxTiles));
  }
  return tiles;
}

float as_float(const char* name, double value) {
  const float narrow = static_cast<float>(value);
  if (!std::isfinite(narrow)) fail(FA3_BAD_VALUE, "%s is %g; it must be a finite 32-bit number", name, value);
  return narrow;
}

float softmax_scale_log2(double softmax_scale) {
  const float scale = static_cast<float>(softmax_scale * kLog2E);
  if (!(scale > 0.0f) || !std::isfinite(scale)) {
    fail(FA3_BAD_VALUE, "softmax_scale is %g; it must be finite and above 0", softmax_scale);
  }
  return scale;
}

// The twin of `derive` in fa3/contract.py, which says what each means.
Value derive(Derived derived, const Spec& spec, const Extents& extents, int64_t num_tiles, double softmax_scale) {
  const int64_t heads_per_kv = extents[Dim::HeadsQ] / extents[Dim::HeadsK];
  Value value{};
  switch (derived) {
    case Derived::SoftmaxScaleLog2: value.f32 = softmax_scale_log2(softmax_scale); break;
    case Derived::HeadsPerKv: value.i32 = static_cast<int32_t>(heads_per_kv); break;
    case Derived::MTiles: value.i32 = static_cast<int32_t>(count_row_tiles(spec, extents)); break;
    case Derived::NumTiles: value.i32 = static_cast<int32_t>(num_tiles); break;
    case Derived::HeadSection: {
      const int64_t kv_bytes = 2 * extents[Dim::SeqlenK] * (extents[Dim::HeadDim] + extents[Dim::HeadDimV]);
      const int64_t kv_heads = kL2SectionBytes / std::max<int64_t>(kv_bytes, 1);
      const int64_t heads = extents[Dim::HeadsQ] * extents[Dim::Batch];
      value.i32 = static_cast<int32_t>(std::max<int64_t>(1, std::min(kv_heads * heads_per_kv, heads)));
      break;
    }
  }
  return value;
}

Value scalar(const Param& param, const char* name, double number) {
  Value value{};
  if (param.kind == Kind::F32) {
    value.f32 = as_float(name, number);
    return value;
  }
  if (!(std::fabs(number) <= INT32_MAX) || number != std::trunc(number)) {
    fail(FA3_BAD_VALUE, "%s is %g; it must be a 32-bit integer", name, number);
  }
  value.i32 = static_cast<int32_t>(number);
  return value;
}

// The byte stride of an axis as a tensor map or 16-byte accesses take it.
uint64_t map_stride(const View& view, int axis, int64_t element_bytes, bool written) {
  const int64_t stride = view.strides[axis];
  if (stride < 0 || stride >= kMaxMapStride / element_bytes || stride * element_bytes % kMapAlignment != 0) {
    fail(
        FA3_BAD_VALUE,
        "%s: stride[%d] is %lld elements; it must be a multiple of %lld (16 bytes), not negative, and below 2^40 bytes",
        view.name, axis, static_cast<long long>(stride), static_cast<long long>(kMapAlignment / element_bytes));
  }
  if (stride == 0 && written)
    fail(FA3_BAD_VALUE, "%s: stride[%d] is 0; the elements of an output must not share memory", view.name, axis);
  return static_cast<uint64_t>(stride * element_bytes);
}

// A map for a tensor without elements, which the kernel never reads: one element at some valid address.
void empty_map(MapArgs& map, int rank, char* address) {
  map.address = address;
  for (int i = 0; i < rank; i++) {
    map.dims[i] = 1;
    map.strides[i] = kMapAlignment;
  }
}

void prepare_map(const View& view, const MapSpec& spec, bool written, char* spare_address, MapArgs& map) {
  map.spec = &spec;
  if (!view.present) return;
  if (view.empty) return empty_map(map, spec.rank, spare_address);
  const int64_t element_bytes = dtype_bytes(spec.dtype);
  if (reinterpret_cast<uintptr_t>(view.data) % kMapAlignment != 0)
    fail(FA3_BAD_VALUE, "%s is not 16-byte aligned", view.name);
  map.address = view.data;
  const int inner = spec.axes[0];
  if (view.shape[inner] > 1 && view.strides[inner] != 1) {
    fail(FA3_BAD_VALUE, "%s: stride[%d] is %lld; that axis must be contiguous", view.name, inner,
         static_cast<long long>(view.strides[inner]));
  }
  // The stride of an axis of extent 1 means nothing, but the driver checks it: give it one that passes.
  const int64_t row_bytes = view.shape[inner] * element_bytes;
  const int64_t any_stride = (row_bytes + kMapAlignment - 1) / kMapAlignment * kMapAlignment;
  for (int i = 0; i < spec.rank; i++) {
    const int axis = spec.axes[i];
    map.dims[i] = static_cast<uint64_t>(view.shape[axis]);
    if (i == 0) continue;
    map.strides[i - 1] =
        view.shape[axis] > 1 ? map_stride(view, axis, element_bytes, written) : static_cast<uint64_t>(any_stride);
  }
}

// A bare pointer.  Tensors of the kernel's own type are read and written 16 bytes at a time.
void check_pointer(const View& view, const Tensor& tensor) {
  const int last = tensor.role->ndim - 1;
  const int bytes = dtype_bytes(tensor.dtype);
  const bool wide = tensor.role->dtype == FA3_OTHER;
  if (wide && reinterpret_cast<uintptr_t>(view.data) % kMapAlignment != 0)
    fail(FA3_BAD_VALUE, "%s is not 16-byte aligned", view.name);
  if (reinterpret_cast<uintptr_t>(view.data) % bytes != 0)
    fail(FA3_BAD_VALUE, "%s is not aligned to its %d-byte elements", view.name, bytes);
  for (int axis = 0; wide && axis < last; axis++) {
    if (view.shape[axis] > 1) map_stride(view, axis, bytes, tensor.role->written);
  }
  if (view.shape[last] > 1 && view.strides[last] != 1) {
    fail(FA3_BAD_VALUE, "%s: stride[%d] is %lld; that axis must be contiguous", view.name, last,
         static_cast<long long>(view.strides[last]));
  }
}

// The address of some tensor with elements; q has some wherever anything is launched.
char* spare_address(const Spec& spec, const View* views) {
  for (size_t i = 0; i < spec.tensors.size(); i++) {
    if (views[i].present && !views[i].empty && spec.tensors[i].map_param >= 0) return views[i].data;
  }
  return nullptr;
}

Value tensor_value(const Param& param, const Spec& spec, const View* views, PreparedCall& prepared) {
  const View& view = views[param.index];
  const Tensor& tensor = spec.tensors[param.index];
  Value value{};
  if (param.kind == Kind::TensorMap) {
    value.map = prepared.num_maps++;
    char* spare = view.empty ? spare_address(spec, views) : nullptr;
    prepare_map(view, param.map, tensor.role->written, spare, prepared.maps[value.map]);
  } else if (view.present) {
    check_pointer(view, tensor);
    value.pointer = view.data;
  }
  return value;
}

Value plain_value(const Param& param, const Spec& spec, const fa3_call& call, const View* views, const Extents& extents,
                  int64_t num_tiles) {
  Value value{};
  switch (param.source) {
    case Source::Tensor: break;
    case Source::Extent: value.i32 = static_cast<int32_t>(views[param.index].shape[param.axis]); break;
    case Source::Stride: value.i64 = views[param.index].strides[param.axis]; break;
    case Source::Scalar: return scalar(param, spec.scalars[param.index].c_str(), call.scalars[param.index]);
    case Source::Derived: return derive(static_cast<Derived>(param.index), spec, extents, num_tiles, call.scalars[0]);
    case Source::Workspace: value.pointer = call.tile_counter; break;
  }
  return value;
}

}  // namespace

void prepare(const Spec& spec, const fa3_call& call, PreparedCall& prepared) {
  check_counts(spec, call);
  View views[kMaxTensors];
  for (size_t i = 0; i < spec.tensors.size(); i++) read_tensor(spec.tensors[i], call.tensors[i], views[i]);
  prepared.device = common_device(spec, call);
  const Extents extents = read_extents(spec, views);
  softmax_scale_log2(call.scalars[0]);
  prepared.num_tiles = count_tiles(spec, extents);
  if (prepared.num_tiles == 0) return;
  for (size_t i = 0; i < spec.params.size(); i++) {
    const Param& param = spec.params[i];
    prepared.values[i] = param.source == Source::Tensor
                             ? tensor_value(param, spec, views, prepared)
                             : plain_value(param, spec, call, views, extents, prepared.num_tiles);
  }
}

uint32_t grid_size(const Spec& spec, int64_t num_tiles, int32_t sm_margin, int32_t num_sms) {
  if (spec.grid == Grid::TilePerCta) return static_cast<uint32_t>(num_tiles);
  if (sm_margin >= num_sms)
    fail(FA3_BAD_VALUE, "sm_margin is %d; it must be below the %d multiprocessors of the device", sm_margin, num_sms);
  return static_cast<uint32_t>(std::min<int64_t>(num_sms - sm_margin, num_tiles));
}

}  // namespace fa3

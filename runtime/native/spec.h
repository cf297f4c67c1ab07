// A kernel as the index describes it: what a call gives, what the kernel takes, how it is launched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fa3.h"

namespace fa3 {

constexpr int kMaxRank = 5;  // of a tensor, as of a tensor map
constexpr int kMaxTensors = 32;
constexpr int kMaxParams = 64;
constexpr int kMaxMaps = 8;

// What the axes of the tensors mean.  Axes of one meaning must have one extent.
enum class Dim { Batch, SeqlenQ, SeqlenK, HeadsQ, HeadsK, HeadDim, HeadDimV };
constexpr int kNumDims = 7;
const char* dim_name(Dim dim);

// What is known of a tensor by its name.
struct Role {
  const char* tensor;
  int ndim;
  Dim dims[kMaxRank];
  fa3_dtype dtype;  // FA3_OTHER: that of the kernel, which its tensor maps have
  bool written;
};

enum class Kind { TensorMap, Pointer, I32, I64, F32 };
enum class Source { Tensor, Extent, Stride, Scalar, Derived, Workspace };
enum class Derived { SoftmaxScaleLog2, HeadsPerKv, MTiles, NumTiles, HeadSection };
enum class Grid { TilePerCta, Persistent };

struct MapSpec {
  fa3_dtype dtype;
  int rank;
  int axes[kMaxRank];  // of the tensor, innermost first
  uint32_t box[kMaxRank];
  int swizzle_bytes;
};

struct Param {
  std::string name;
  Kind kind;
  Source source;
  int index = 0;  // into tensors or scalars; a Derived
  int axis = 0;   // for extents and strides
  MapSpec map{};  // for tensor maps
};

struct Tensor {
  const Role* role;
  bool optional;
  fa3_dtype dtype;
  int map_param;  // into params; -1 where the kernel takes a bare pointer
};

struct Spec {
  std::string name;
  std::string symbol;
  std::string cubin_path;  // inside the bundle
  uint64_t cubin_bytes = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  unsigned threads = 0;
  unsigned smem_bytes = 0;  // dynamic shared memory
  int64_t tile_m = 0;       // query rows of a CTA
  Grid grid = Grid::TilePerCta;
  std::vector<Tensor> tensors;
  std::vector<std::string> scalars;
  std::vector<Param> params;  // in the order of the kernel's signature
};

const char* dtype_name(int dtype);
int dtype_bytes(fa3_dtype dtype);

}  // namespace fa3

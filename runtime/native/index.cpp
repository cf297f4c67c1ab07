#include "index.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "error.h"

namespace fa3 {

namespace {

using Words = std::vector<std::string>;

constexpr int64_t kSchema = 3;

template <typename Value>
struct Named {
  const char* name;
  Value value;
};

constexpr Named<fa3_dtype> kDtypes[] = {
    {"bf16", FA3_BF16}, {"fp16", FA3_FP16}, {"fp32", FA3_FP32}, {"e4m3", FA3_E4M3}, {"int32", FA3_INT32}};
constexpr Named<Kind> kKinds[] = {{"tensormap", Kind::TensorMap},
                                  {"pointer", Kind::Pointer},
                                  {"i32", Kind::I32},
                                  {"i64", Kind::I64},
                                  {"f32", Kind::F32}};
constexpr Named<Source> kSources[] = {{"tensor", Source::Tensor},   {"extent", Source::Extent},
                                      {"stride", Source::Stride},   {"scalar", Source::Scalar},
                                      {"derived", Source::Derived}, {"workspace", Source::Workspace}};
constexpr Named<Derived> kDerived[] = {{"softmax_scale_log2", Derived::SoftmaxScaleLog2},
                                       {"heads_per_kv", Derived::HeadsPerKv},
                                       {"m_tiles", Derived::MTiles},
                                       {"num_tiles", Derived::NumTiles},
                                       {"head_section", Derived::HeadSection}};
constexpr Named<Grid> kGrids[] = {{"tile_per_cta", Grid::TilePerCta}, {"persistent", Grid::Persistent}};

// The tensors of layout "dense": (batch, seqlen, heads, head_dim).
constexpr Role kDenseRoles[] = {
    {"q", 4, {Dim::Batch, Dim::SeqlenQ, Dim::HeadsQ, Dim::HeadDim}, FA3_OTHER, false},
    {"k", 4, {Dim::Batch, Dim::SeqlenK, Dim::HeadsK, Dim::HeadDim}, FA3_OTHER, false},
    {"v", 4, {Dim::Batch, Dim::SeqlenK, Dim::HeadsK, Dim::HeadDimV}, FA3_OTHER, false},
    {"out", 4, {Dim::Batch, Dim::SeqlenQ, Dim::HeadsQ, Dim::HeadDimV}, FA3_OTHER, true},
    {"lse", 3, {Dim::Batch, Dim::HeadsQ, Dim::SeqlenQ}, FA3_FP32, true},
};

Words split(std::string_view text, char separator) {
  Words words;
  for (;;) {
    const size_t end = text.find(separator);
    words.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

Words split_list(const std::string& text) { return text == "-" ? Words{} : split(text, ','); }

template <typename Item>
int position(const std::vector<Item>& items, const Item& item) {
  const auto found = std::find(items.begin(), items.end(), item);
  return found == items.end() ? -1 : static_cast<int>(found - items.begin());
}

class Parser {
 public:
  explicit Parser(const std::string& text) : lines_(split(text, '\n')) {
    if (lines_.back().empty()) lines_.pop_back();
  }

  Index parse() {
    Index index;
    header();
    index.arch = expect("arch", 1)[1];
    while (line_ < lines_.size()) index.kernels.push_back(kernel());
    std::sort(index.kernels.begin(), index.kernels.end(), [](const Spec& a, const Spec& b) { return a.name < b.name; });
    for (size_t i = 1; i < index.kernels.size(); i++) {
      if (index.kernels[i].name == index.kernels[i - 1].name)
        bad("kernel " + index.kernels[i].name + " is there twice");
    }
    return index;
  }

 private:
  [[noreturn]] void bad(const std::string& what) const {
    fail(FA3_BAD_BUNDLE, "index.txt, line %zu: %s", line_, what.c_str());
  }

  [[noreturn]] void unknown(const char* what, const std::string& name) const {
    bad("this libfa3 does not know the " + std::string(what) + " '" + name +
        "': install the runtime that came with the bundle");
  }

  void header() {
    const Words words = lines_.empty() ? Words{} : split(lines_[0], ' ');
    if (words.size() != 2 || words[0] != "fa3-index") fail(FA3_BAD_BUNDLE, "index.txt is no index of a fa3gen bundle");
    line_ = 1;
    if (number(words[1]) == kSchema) return;
    fail(
        FA3_BAD_BUNDLE,
        "index.txt has schema %s, this libfa3 reads schema %d: rebuild the bundle with the fa3gen of the same release, "
        "or install the runtime that came with it",
        words[1].c_str(), static_cast<int>(kSchema));
  }

  // The next line's words; it must begin with `keyword` and have `count` words behind it.
  Words expect(const char* keyword, size_t count) {
    if (line_ == lines_.size()) bad("the text ends where '" + std::string(keyword) + "' should follow");
    Words words = split(lines_[line_++], ' ');
    if (words[0] != keyword) bad("found '" + words[0] + "' instead of '" + keyword + "'");
    if (words.size() != count + 1) bad("'" + std::string(keyword) + "' has too few or too many words");
    return words;
  }

  int64_t number(const std::string& word) const {
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(word.c_str(), &end, 10);
    if (word.empty() || *end != '\0' || errno != 0) bad("'" + word + "' is no number");
    return value;
  }

  int64_t number(const std::string& word, int64_t low, int64_t high) const {
    const int64_t value = number(word);
    if (value < low || value > high) bad(word + " is out of range");
    return value;
  }

  template <typename Table>
  auto look_up(const Table& table, const std::string& name, const char* what) const {
    for (const auto& entry : table) {
      if (name == entry.name) return entry.value;
    }
    unknown(what, name);
  }

  Spec kernel() {
    Spec spec;
    spec.name = expect("kernel", 1)[1];
    key(spec, expect("key", 6));
    spec.symbol = expect("symbol", 1)[1];
    const Words cubin = expect("cubin", 2);
    spec.cubin_path = cubin[1];
    spec.cubin_bytes = static_cast<uint64_t>(number(cubin[2], 1, INT64_MAX));
    launch(spec, expect("launch", 8));
    const Words names = split_list(expect("tensors", 1)[1]);
    const Words optional = split_list(expect("optional", 1)[1]);
    spec.scalars = split_list(expect("scalars", 1)[1]);
    for (const std::string& name : names) spec.tensors.push_back(tensor(name, position(optional, name) >= 0));
    while (line_ < lines_.size() && lines_[line_] != "end") spec.params.push_back(param(spec, names));
    expect("end", 0);
    check(spec);
    return spec;
  }

  // key FAMILY DTYPE HEAD_DIM MASK LAYOUT FEATURES
  void key(Spec& spec, const Words& words) const {
    if (words[5] != "dense") unknown("layout", words[5]);
    const Words dims = split(words[3], 'x');
    if (dims.size() > 2) bad("'" + words[3] + "' is no head_dim");
    spec.head_dim = number(dims.front(), 1, 1 << 16);
    spec.head_dim_v = number(dims.back(), 1, 1 << 16);
  }

  // launch threads N smem N grid RULE tile_m N
  void launch(Spec& spec, const Words& words) const {
    constexpr const char* kNames[] = {"threads", "smem", "grid", "tile_m"};
    for (size_t i = 0; i < std::size(kNames); i++) {
      if (words[1 + 2 * i] != kNames[i]) bad("found '" + words[1 + 2 * i] + "' instead of '" + kNames[i] + "'");
    }
    spec.threads = static_cast<unsigned>(number(words[2], 1, 1024));
    spec.smem_bytes = static_cast<unsigned>(number(words[4], 0, 1 << 20));
    spec.grid = look_up(kGrids, words[6], "grid rule");
    spec.tile_m = number(words[8], 1, 1 << 16);
  }

  Tensor tensor(const std::string& name, bool optional) const {
    for (const Role& role : kDenseRoles) {
      if (name == role.tensor) return {&role, optional, role.dtype, -1};
    }
    unknown("tensor", name);
  }

  // param NAME KIND SOURCE [DTYPE axes A,... box B,... swizzle BYTES]
  Param param(const Spec& spec, const Words& tensors) {
    const bool has_map = lines_[line_].find(" tensormap ") != std::string::npos;
    const Words words = expect("param", has_map ? 10 : 3);
    Param param;
    param.name = words[1];
    param.kind = look_up(kKinds, words[2], "parameter kind");
    source(param, split(words[3], ':'), spec, tensors);
    if (has_map) map(param, words, spec);
    return param;
  }

  // tensor:NAME extent:NAME:AXIS stride:NAME:AXIS scalar:NAME derived:NAME workspace:NAME
  void source(Param& param, const Words& words, const Spec& spec, const Words& tensors) const {
    param.source = look_up(kSources, words[0], "parameter source");
    const bool has_axis = param.source == Source::Extent || param.source == Source::Stride;
    if (words.size() != (has_axis ? 3 : 2)) bad("parameter " + param.name + " has a damaged source");
    if (param.source == Source::Tensor || has_axis) param.index = index_of(tensors, words[1]);
    if (param.source == Source::Scalar) param.index = index_of(spec.scalars, words[1]);
    if (param.source == Source::Derived) param.index = static_cast<int>(look_up(kDerived, words[1], "derived scalar"));
    if (param.source == Source::Workspace && words[1] != "tile_counter") unknown("workspace", words[1]);
    if (has_axis) param.axis = static_cast<int>(number(words[2], 0, spec.tensors[param.index].role->ndim - 1));
    if (!fits(param)) bad("parameter " + param.name + " takes no value of that source");
  }

  int index_of(const Words& names, const std::string& name) const {
    const int index = position(names, name);
    if (index < 0) bad("'" + name + "' is no argument of this kernel");
    return index;
  }

  static bool fits(const Param& param) {
    switch (param.source) {
      case Source::Tensor: return param.kind == Kind::TensorMap || param.kind == Kind::Pointer;
      case Source::Extent: return param.kind == Kind::I32;
      case Source::Stride: return param.kind == Kind::I64;
      case Source::Scalar: return param.kind == Kind::I32 || param.kind == Kind::F32;
      case Source::Workspace: return param.kind == Kind::Pointer;
      case Source::Derived:
        return param.kind == (param.index == static_cast<int>(Derived::SoftmaxScaleLog2) ? Kind::F32 : Kind::I32);
    }
    return false;
  }

  void map(Param& param, const Words& words, const Spec& spec) const {
    MapSpec& map = param.map;
    map.dtype = look_up(kDtypes, words[4], "element type");
    const Words axes = split_list(words[6]), box = split_list(words[8]);
    const size_t ndim = static_cast<size_t>(spec.tensors[param.index].role->ndim);
    if (words[5] != "axes" || words[7] != "box" || words[9] != "swizzle" || axes.size() != ndim || box.size() != ndim) {
      bad("parameter " + param.name + " has a damaged tensor map");
    }
    map.rank = static_cast<int>(ndim);
    unsigned seen = 0;
    for (size_t i = 0; i < ndim; i++) {
      map.axes[i] = static_cast<int>(number(axes[i], 0, map.rank - 1));
      map.box[i] = static_cast<uint32_t>(number(box[i], 1, 256));
      seen |= 1u << map.axes[i];
    }
    if (seen != (1u << map.rank) - 1) bad("parameter " + param.name + " leaves an axis out");
    map.swizzle_bytes = static_cast<int>(number(words[10], 0, 128));
    const int bytes = map.swizzle_bytes;
    if (bytes != 0 && bytes != 32 && bytes != 64 && bytes != 128) bad(words[10] + " is no swizzle");
  }

  // What holds for a whole kernel; gives each tensor its map.
  void check(Spec& spec) const {
    if (spec.tensors.size() > kMaxTensors || spec.params.size() > kMaxParams)
      bad("kernel " + spec.name + " has too many arguments");
    int maps = 0;
    fa3_dtype element = FA3_OTHER;  // of the first map: also that of tensors without a map or a dtype of their own
    for (size_t i = 0; i < spec.params.size(); i++) {
      if (spec.params[i].kind != Kind::TensorMap) continue;
      Tensor& tensor = spec.tensors[spec.params[i].index];
      tensor.map_param = static_cast<int>(i);
      tensor.dtype = spec.params[i].map.dtype;
      if (maps++ == 0) element = tensor.dtype;
    }
    if (maps > kMaxMaps) bad("kernel " + spec.name + " has too many tensor maps");
    for (Tensor& tensor : spec.tensors) {
      if (tensor.dtype == FA3_OTHER) tensor.dtype = element;
      if (tensor.dtype == FA3_OTHER) bad("tensor " + std::string(tensor.role->tensor) + " has no dtype");
    }
    for (const char* needed : {"q", "k", "v"}) {  // shapes are taken from these
      auto is_needed = [needed](const Tensor& tensor) {
        return std::strcmp(tensor.role->tensor, needed) == 0 && !tensor.optional;
      };
      if (std::none_of(spec.tensors.begin(), spec.tensors.end(), is_needed))
        bad("kernel " + spec.name + " has no tensor " + needed);
    }
    const bool scaled = position(spec.scalars, std::string("softmax_scale")) == 0;
    if (!scaled) bad("the first scalar of kernel " + spec.name + " is not softmax_scale");
  }

  Words lines_;
  size_t line_ = 0;  // lines read so far
};

}  // namespace

Index parse_index(const std::string& text) { return Parser(text).parse(); }

const char* dim_name(Dim dim) {
  constexpr const char* kNames[] = {"batch", "seqlen_q", "seqlen_k", "heads_q", "heads_k", "head_dim", "head_dim_v"};
  return kNames[static_cast<int>(dim)];
}

const char* dtype_name(int dtype) {
  for (const auto& entry : kDtypes) {
    if (entry.value == dtype) return entry.name;
  }
  return "of another type";
}

int dtype_bytes(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_BF16:
    case FA3_FP16: return 2;
    case FA3_FP32:
    case FA3_INT32: return 4;
    default: return 1;
  }
}

}  // namespace fa3

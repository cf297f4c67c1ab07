/* fa3.h: run the attention kernels of a bundle from C, C++ or anything that can call C.
 *
 * A bundle is a folder of data that `fa3gen build` writes: index.txt (what this library reads) and cubins.
 * libfa3 needs libc, and the NVIDIA driver (libcuda.so.1) from the first call that touches a GPU; it uses
 * no CUDA runtime.
 *
 *     fa3_bundle* bundle;
 *     const fa3_kernel* kernel;
 *     if (fa3_bundle_open("build/bundle", &bundle)) die(fa3_last_error());
 *     if (fa3_bundle_find(bundle, "fwd_bf16_d128_causal_sm90a", &kernel)) die(fa3_last_error());
 *
 *     int64_t shape[4] = {batch, seqlen, heads, 128};
 *     fa3_tensor q = {.data = q_address, .dtype = FA3_BF16, .device = 0, .ndim = 4, .shape = shape};
 *     ...
 *     const fa3_tensor* tensors[] = {&q, &k, &v, &out, NULL};             // NULL: no lse wanted
 *     double scalars[] = {softmax_scale};
 *     fa3_call call = {.size = sizeof call, .num_tensors = 5, .num_scalars = 1, .tensors = tensors,
 *                      .scalars = scalars, .stream = stream};
 *     if (fa3_launch(kernel, &call)) die(fa3_last_error());
 *
 * Threads: every function may be called from any thread at any time; closing a bundle that is in use is the
 * one exception.  A call changes neither the thread's current context nor its device.
 *
 * Fork: opening a bundle does not touch the driver, so a process may open one and then fork.  Once a process
 * has used the driver, its forked children cannot: they get FA3_FORKED.
 *
 * CUDA graphs: a launch may be captured; a kernel that was not used before is loaded first.  Every captured
 * launch of a kernel with a tile counter takes a counter of its own, so graphs do not disturb each other;
 * but two executable graphs instantiated from one captured graph share theirs and must not run at once.
 */
#ifndef FA3_H
#define FA3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FA3_API __attribute__((visibility("default")))
#else
#define FA3_API
#endif

/* Rises with every addition to this header; what is there keeps its meaning. */
#define FA3_API_VERSION 1

/* The FA3_API_VERSION that the library was built with. */
FA3_API int32_t fa3_api_version(void);

typedef enum fa3_status {
  FA3_OK = 0,
  FA3_BAD_VALUE = 1,    /* an argument's value, shape, stride or alignment */
  FA3_BAD_TYPE = 2,     /* a tensor's element type */
  FA3_NOT_FOUND = 3,    /* no such kernel, no such bundle */
  FA3_BAD_BUNDLE = 4,   /* damaged, or of a schema that this library cannot read */
  FA3_NO_DRIVER = 5,    /* no driver, a too old one, or no GPU */
  FA3_BAD_DEVICE = 6,   /* a device that does not exist or cannot run the kernel */
  FA3_FORKED = 7,       /* CUDA was initialised before this process was forked */
  FA3_DRIVER_ERROR = 8, /* the driver refused a call; also how an earlier kernel's fault shows */
  FA3_OUT_OF_MEMORY = 9 /* host or device memory */
} fa3_status;

/* What went wrong in this thread's last call that did not return FA3_OK.  The text belongs to the library
 * and stays until the thread's next failing call. */
FA3_API const char* fa3_last_error(void);

typedef struct fa3_bundle fa3_bundle;
typedef struct fa3_kernel fa3_kernel; /* belongs to its bundle */

/* ---- bundles ------------------------------------------------------------------------------------------ */

/* Reads the index and the cubins of the bundle in folder `path`.  The folder is not needed afterwards. */
FA3_API fa3_status fa3_bundle_open(const char* path, fa3_bundle** bundle);

/* Unloads the bundle's kernels from all devices and frees it.  Launches that still run or were captured must
 * have ended.  NULL is allowed. */
FA3_API void fa3_bundle_close(fa3_bundle* bundle);

/* Kernels are sorted by name. */
FA3_API size_t fa3_bundle_num_kernels(const fa3_bundle* bundle);

/* The kernel at `index`, NULL past the end. */
FA3_API const fa3_kernel* fa3_bundle_kernel(const fa3_bundle* bundle, size_t index);

/* The kernel of that name, or FA3_NOT_FOUND.  Every kernel serves every size; a bundle may hold further kernels
 * of a variant, named NAME__..., that are quicker within the bounds that manifest.json gives under "when". */
FA3_API fa3_status fa3_bundle_find(const fa3_bundle* bundle, const char* name, const fa3_kernel** kernel);

/* ---- kernels ------------------------------------------------------------------------------------------ */

FA3_API const char* fa3_kernel_name(const fa3_kernel* kernel);

/* The tensors and scalars that a call must give, in order; NULL past the end. */
FA3_API const char* fa3_kernel_tensor(const fa3_kernel* kernel, size_t index);
FA3_API const char* fa3_kernel_scalar(const fa3_kernel* kernel, size_t index);

/* 1 where a call may leave the tensor out (NULL), else 0. */
FA3_API int fa3_kernel_tensor_is_optional(const fa3_kernel* kernel, size_t index);

/* Loads the kernel on `device` (a CUDA device ordinal) and prepares all that a launch there needs, so that
 * the first launch is as quick as the others.  Launching does it by itself where it was not done. */
FA3_API fa3_status fa3_warm(const fa3_kernel* kernel, int32_t device);

/* Streaming multiprocessors of `device`; of the instance where it is partitioned by MIG. */
FA3_API fa3_status fa3_num_sms(int32_t device, int32_t* num_sms);

/* ---- calls -------------------------------------------------------------------------------------------- */

typedef enum fa3_dtype {
  FA3_OTHER = 0, /* an element type that no kernel takes */
  FA3_BF16 = 1,
  FA3_FP16 = 2,
  FA3_FP32 = 3,
  FA3_E4M3 = 4, /* float8_e4m3fn */
  FA3_INT32 = 5
} fa3_dtype;

/* The arguments of forward kernels of layout "dense".  Axes of one name have one extent.
 *
 *     q              (batch, seqlen_q, heads_q, head_dim)   the kernel's element type; head_dim is the kernel's
 *     k, v           (batch, seqlen_k, heads_k, head_dim)   heads_q is a multiple of heads_k
 *     out            (batch, seqlen_q, heads_q, head_dim)   written
 *     lse            (batch, heads_q, seqlen_q)             fp32, written: natural log of each row's sum of
 * exponentials softmax_scale  finite and above 0; multiplies the scores
 *
 * The last axis is contiguous.  Of q, k, v and out the address and the other strides are multiples of 16 bytes; strides
 * are not negative, and below 2^40 bytes.  Strides of axes of extent 1 mean nothing.  A row that sees no key gets
 * out 0 and lse -infinity; with seqlen_k 0 that is every row. */

/* A tensor in device memory.  `shape` and `strides` count elements; strides NULL means contiguous.  Nothing is
 * kept after the call. */
typedef struct fa3_tensor {
  void* data;
  const int64_t* shape;
  const int64_t* strides;
  int32_t ndim;
  int32_t dtype;  /* fa3_dtype */
  int32_t device; /* CUDA device ordinal */
  int32_t reserved;
} fa3_tensor;

/* One call of a kernel.  Zero what you do not set. */
typedef struct fa3_call {
  size_t size; /* sizeof(fa3_call): how this struct grows */
  int32_t num_tensors;
  int32_t num_scalars;
  const fa3_tensor* const* tensors; /* one a tensor of the kernel, in its order; NULL for an absent optional one */
  const double* scalars;            /* one a scalar of the kernel, in its order */
  void* stream;                     /* CUstream or cudaStream_t of the tensors' device; NULL is the default stream */
  int32_t sm_margin;                /* multiprocessors that a persistent kernel leaves free for others */
  int32_t reserved;
  int32_t* tile_counter; /* NULL: the library's own.  Else device memory of the caller: one int32, 4-byte aligned, 0
                            before the launch; the kernel leaves 0.  No two launches that may overlap may share it. */
} fa3_call;

/* Checks the call and enqueues the kernel on the call's stream.  A call without output elements checks and
 * launches nothing.  Outputs are written on the stream's time; a fault in the kernel shows in a later call. */
FA3_API fa3_status fa3_launch(const fa3_kernel* kernel, const fa3_call* call);

/* What fa3_launch would do on a device with `num_sms` multiprocessors, as text, without a driver: lines "grid N",
 * "block N", "smem BYTES" and one "param NAME KIND VALUE..." a parameter.  Writes at most `capacity` bytes with the
 * closing 0 into `text` and the needed capacity into `needed` (either may be NULL); a text cut short is no error. */
FA3_API fa3_status fa3_describe(const fa3_kernel* kernel, const fa3_call* call, int32_t num_sms, char* text,
                                size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif

#endif /* FA3_H */

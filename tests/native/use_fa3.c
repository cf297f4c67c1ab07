/* A program that knows the launcher by fa3.h alone.
 *
 *     use_fa3 BUNDLE KERNEL        opens the bundle, finds the kernel and prints what a call would pass
 *     use_fa3 BUNDLE KERNEL run    runs the kernel on GPU 0 and checks its output
 *
 * The check: keys are all zero, so every row is the plain mean of the values that it sees, and the values of key j are
 * j % 8.  Works for full and causal kernels of bf16 and fp16.  Memory comes from the driver, opened here: the launcher
 * allocates none for its caller. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa3.h"

enum { BATCH = 2, SEQLEN_Q = 150, SEQLEN_K = 200, HEADS_Q = 4, HEADS_K = 2, MAX_HEAD_DIM = 256, PERIOD = 8 };

static void stop(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void check(fa3_status status, const char* what) {
  if (status != FA3_OK) stop(what, fa3_last_error());
}

/* The driver's functions that a caller needs to own memory. */
static int (*cuInit)(unsigned);
static int (*cuDevicePrimaryCtxRetain)(void**, int);
static int (*cuCtxSetCurrent)(void*);
static int (*cuCtxSynchronize)(void);
static int (*cuMemAlloc)(unsigned long long*, size_t);
static int (*cuMemcpyHtoD)(unsigned long long, const void*, size_t);
static int (*cuMemcpyDtoH)(void*, unsigned long long, size_t);

static void cuda(int result, const char* what) {
  char text[32];
  snprintf(text, sizeof text, "CUDA error %d", result);
  if (result != 0) stop(what, text);
}

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
  if (library == NULL) stop("libcuda.so.1", dlerror());
#define FIND(name, symbol)                 \
  *(void**)&name = dlsym(library, symbol); \
  if (name == NULL) stop(symbol, "not found");
  FIND(cuInit, "cuInit")
  FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")
  FIND(cuCtxSetCurrent, "cuCtxSetCurrent")
  FIND(cuCtxSynchronize, "cuCtxSynchronize")
  FIND(cuMemAlloc, "cuMemAlloc_v2")
  FIND(cuMemcpyHtoD, "cuMemcpyHtoD_v2")
  FIND(cuMemcpyDtoH, "cuMemcpyDtoH_v2")
  cuda(cuInit(0), "cuInit");
  cuda(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* 16-bit floats.  What is encoded here needs few bits, so it is exact in both types. */
static uint16_t encode(float value, int dtype) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (dtype == FA3_BF16 || bits == 0) return (uint16_t)(bits >> 16);
  return (uint16_t)((((bits >> 23) - 112) << 10) | ((bits >> 13) & 0x3ff));
}

static float decode(uint16_t word, int dtype) {
  if (dtype == FA3_BF16) {
    const uint32_t bits = (uint32_t)word << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  const int exponent = (word >> 10) & 31;
  const float size =
      exponent == 31 ? NAN : ldexpf((float)((word & 0x3ff) | (exponent ? 0x400 : 0)), (exponent ? exponent : 1) - 25);
  return word >> 15 ? -size : size;
}

struct problem {
  int dtype, causal;
  int64_t shapes[5][4]; /* q, k, v, out, lse */
  size_t counts[5];
  fa3_tensor tensors[5];
};

static void describe(struct problem* p, const char* kernel) {
  const char* d = strstr(kernel, "_d");
  const int64_t head_dim = d == NULL ? 0 : atoi(d + 2);
  if (head_dim <= 0 || head_dim > MAX_HEAD_DIM) stop(kernel, "no head_dim in the name");
  const int64_t shapes[5][4] = {{BATCH, SEQLEN_Q, HEADS_Q, head_dim},
                                {BATCH, SEQLEN_K, HEADS_K, head_dim},
                                {BATCH, SEQLEN_K, HEADS_K, head_dim},
                                {BATCH, SEQLEN_Q, HEADS_Q, head_dim},
                                {BATCH, HEADS_Q, SEQLEN_Q, 0}};
  memcpy(p->shapes, shapes, sizeof shapes);
  p->dtype = strstr(kernel, "fp16") != NULL ? FA3_FP16 : FA3_BF16;
  p->causal = strstr(kernel, "causal") != NULL;
  for (int i = 0; i < 5; i++) {
    fa3_tensor tensor = {.shape = p->shapes[i], .ndim = i == 4 ? 3 : 4, .dtype = i == 4 ? FA3_FP32 : p->dtype};
    p->counts[i] = 1;
    for (int axis = 0; axis < tensor.ndim; axis++) p->counts[i] *= (size_t)tensor.shape[axis];
    tensor.data = (void*)(0x100000000 + 0x10000000 * (uintptr_t)i); /* read by nobody unless `run` replaces it */
    p->tensors[i] = tensor;
  }
}

static size_t bytes_of(const struct problem* p, int i) { return p->counts[i] * (i == 4 ? 4 : 2); }

static void upload(struct problem* p) {
  for (int i = 0; i < 5; i++) {
    uint16_t* host = malloc(bytes_of(p, i));
    const int64_t row = p->shapes[i][3], heads = p->shapes[i][2];
    memset(host, 0xff, bytes_of(p, i)); /* NaN: an element that is not written shows */
    for (size_t j = 0; i < 3 && j < p->counts[i]; j++) {
      const int64_t key = (int64_t)j / (row * heads) % SEQLEN_K;
      host[j] = encode(i == 0 ? 1.0f : i == 1 ? 0.0f : (float)(key % PERIOD), p->dtype);
    }
    unsigned long long device;
    cuda(cuMemAlloc(&device, bytes_of(p, i)), "cuMemAlloc");
    cuda(cuMemcpyHtoD(device, host, bytes_of(p, i)), "cuMemcpyHtoD");
    p->tensors[i].data = (void*)(uintptr_t)device;
    free(host);
  }
}

static void* download(const struct problem* p, int i) {
  void* host = malloc(bytes_of(p, i));
  cuda(cuMemcpyDtoH(host, (unsigned long long)(uintptr_t)p->tensors[i].data, bytes_of(p, i)), "cuMemcpyDtoH");
  return host;
}

/* The largest difference from what is due, over outputs and log-sum-exps. */
static double worst_error(const struct problem* p) {
  uint16_t* out = download(p, 3);
  float* lse = download(p, 4);
  double worst = 0;
  for (size_t j = 0; j < p->counts[3]; j++) {
    const int row = (int)(j / (size_t)(p->shapes[3][3] * HEADS_Q) % SEQLEN_Q);
    const int seen = p->causal ? row + SEQLEN_K - SEQLEN_Q + 1 : SEQLEN_K;
    double mean = 0;
    for (int key = 0; key < seen; key++) mean += key % PERIOD;
    const double error = fabs(decode(out[j], p->dtype) - mean / seen) / PERIOD;
    if (!(error <= worst)) worst = error; /* NaN too */
    if (isnan(error)) break;
  }
  for (size_t j = 0; j < p->counts[4] && !isnan(worst); j++) {
    const int row = (int)(j % SEQLEN_Q);
    const double error = fabs(lse[j] - log(p->causal ? row + SEQLEN_K - SEQLEN_Q + 1 : SEQLEN_K));
    if (!(error <= worst)) worst = error;
  }
  free(out);
  free(lse);
  return worst;
}

int main(int argc, char** argv) {
  if (argc < 3) stop("usage", "use_fa3 BUNDLE KERNEL [run]");
  fa3_bundle* bundle;
  const fa3_kernel* kernel;
  if (fa3_api_version() != FA3_API_VERSION) stop("libfa3", "is of another version than fa3.h");
  check(fa3_bundle_open(argv[1], &bundle), "open");
  check(fa3_bundle_find(bundle, argv[2], &kernel), "find");

  struct problem p;
  describe(&p, argv[2]);
  const fa3_tensor* tensors[] = {&p.tensors[0], &p.tensors[1], &p.tensors[2], &p.tensors[3], &p.tensors[4]};
  const double scalars[] = {1.0 / sqrt((double)p.shapes[0][3])};
  fa3_call call = {.size = sizeof call, .num_tensors = 5, .num_scalars = 1, .tensors = tensors, .scalars = scalars};

  if (argc == 3) {
    static char text[4096];
    check(fa3_describe(kernel, &call, 132, text, sizeof text, NULL), "describe");
    printf("%s: %zu kernels\n%s", argv[2], fa3_bundle_num_kernels(bundle), text);
  } else {
    open_driver();
    upload(&p);
    check(fa3_launch(kernel, &call), "launch");
    cuda(cuCtxSynchronize(), "the kernel");
    const double worst = worst_error(&p);
    printf("%s: worst error %g\n", argv[2], worst);
    if (!(worst < 5e-3)) stop(argv[2], "is wrong");
  }
  fa3_bundle_close(bundle);
  return 0;
}

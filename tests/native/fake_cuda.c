/* A CUDA driver without a GPU: keeps to the rules that the launcher must obey, writes down every call, and breaks where
 * a real driver would.  One line a call, `TID NAME ARGUMENTS`, appended to the file named by FAKE_CUDA_LOG.
 *
 * Streams are made up by the test: a stream's value is its id; 0x1000 in it says that the stream is being captured.
 * fake_set changes how the driver behaves; see the settings below. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  LAUNCH_OUT_OF_RESOURCES = 701,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_IMPLICIT = 906,
};

enum { MAX_DEVICES = 8, STACK = 16, CAPTURED = 0x1000, RELAXED = 2 };

typedef struct {
  uint64_t opaque[16];
} TensorMap;
typedef struct {
  unsigned grid[3], block[3], smem;
  void *stream, *attributes;
  unsigned num_attributes;
} LaunchConfig;

/* settings */
static int num_devices = 2;
static int capability = 90;
static int max_smem = 232448;
static int capturing;         /* some thread captures in global mode */
static int init_result;       /* what cuInit returns */
static int launch_result;     /* what cuLaunchKernelEx returns */
static int slowness;          /* milliseconds that cuInit and cuLibraryLoadData take */
static char param_kinds[128]; /* of the kernel that is launched: M map, P pointer, I i32, L i64, F f32 */

static pid_t owner; /* the process that called cuInit */
static atomic_int contexts_retained[MAX_DEVICES];
static atomic_ullong next_address = 0x700000000000;
static _Thread_local int capture_mode;      /* 0 global: the default */
static _Thread_local intptr_t stack[STACK]; /* contexts: device ordinal + 1 */
static _Thread_local int depth;

/* A library's and its kernel's handle is 0x1000 + its number. */
static int kernel_smem[256][MAX_DEVICES];
static int kernel_loaded[256][MAX_DEVICES];
static atomic_int num_kernels;

static void note(const char* format, ...) {
  const char* path = getenv("FAKE_CUDA_LOG");
  if (path == NULL) return;
  char line[2048];
  int length = snprintf(line, sizeof line, "%ld ", (long)syscall(SYS_gettid));
  va_list args;
  va_start(args, format);
  length += vsnprintf(line + length, sizeof line - length - 1, format, args);
  va_end(args);
  line[length++] = '\n';
  int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
  if (write(file, line, length) != length) abort();
  close(file);
}

static int started(void) { return owner == getpid() ? SUCCESS : NOT_INITIALIZED; }

#define USE()                        \
  do {                               \
    if (started()) return started(); \
  } while (0)

/* What may not be done while a stream is captured, unless the thread allows it. */
#define USE_OUTSIDE_CAPTURE()                     \
  do {                                            \
    USE();                                        \
    if (capturing && capture_mode != RELAXED) {   \
      note("illegal-under-capture %s", __func__); \
      return CAPTURE_UNSUPPORTED;                 \
    }                                             \
  } while (0)

void fake_set(const char* name, const char* value) {
  int number = atoi(value);
  if (!strcmp(name, "devices")) num_devices = number;
  if (!strcmp(name, "capability")) capability = number;
  if (!strcmp(name, "max_smem")) max_smem = number;
  if (!strcmp(name, "capturing")) capturing = number;
  if (!strcmp(name, "init_result")) init_result = number;
  if (!strcmp(name, "launch_result")) launch_result = number;
  if (!strcmp(name, "slowness")) slowness = number;
  if (!strcmp(name, "param_kinds")) snprintf(param_kinds, sizeof param_kinds, "%s", value);
}

/* The calling thread's current context: device ordinal, or -1. */
int fake_current_device(void) { return depth == 0 ? -1 : (int)stack[depth - 1] - 1; }
int fake_capture_mode(void) { return capture_mode; }
void fake_push(int device) { stack[depth++] = device + 1; }

int cuInit(unsigned flags) {
  note("cuInit %u", flags);
  usleep(1000 * slowness);
  if (owner != 0 && owner != getpid()) return NOT_INITIALIZED;
  if (init_result != SUCCESS) return init_result;
  if (num_devices == 0) return NO_DEVICE;
  owner = getpid();
  return SUCCESS;
}

int cuGetErrorName(int error, const char** text) {
  *text = error == LAUNCH_OUT_OF_RESOURCES ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : "CUDA_ERROR_FAKE";
  return SUCCESS;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == LAUNCH_OUT_OF_RESOURCES ? "too many resources requested for launch" : "a made-up error";
  return SUCCESS;
}

int cuDeviceGetCount(int* count) {
  USE();
  *count = num_devices;
  return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
  USE();
  if (ordinal < 0 || ordinal >= num_devices) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  USE();
  switch (attribute) {
    case 16: *value = device == 0 ? 132 : 16; return SUCCESS; /* the second is a slice */
    case 75: *value = capability / 10; return SUCCESS;
    case 76: *value = capability % 10; return SUCCESS;
    default: return INVALID_VALUE;
  }
}

int cuDevicePrimaryCtxRetain(intptr_t* context, int device) {
  USE();
  note("cuDevicePrimaryCtxRetain device %d", device);
  contexts_retained[device]++;
  *context = device + 1;
  return SUCCESS;
}

int cuCtxPushCurrent_v2(intptr_t context) {
  USE();
  if (context == 0 || depth == STACK) return INVALID_CONTEXT;
  stack[depth++] = context;
  return SUCCESS;
}

int cuCtxPopCurrent_v2(intptr_t* context) {
  USE();
  if (depth == 0) return INVALID_CONTEXT;
  *context = stack[--depth];
  return SUCCESS;
}

int cuLibraryLoadData(void** library, const void* code, int* a, void** b, unsigned c, int* d, void** e, unsigned f) {
  USE_OUTSIDE_CAPTURE();
  note("cuLibraryLoadData %.4s", (const char*)code);
  usleep(1000 * slowness);
  if (a || b || c || d || e || f) return INVALID_VALUE;
  *library = (void*)(intptr_t)(0x1000 + num_kernels++);
  return SUCCESS;
}

int cuLibraryUnload(void* library) {
  USE();
  note("cuLibraryUnload %p", library);
  return SUCCESS;
}

int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  USE();
  note("cuLibraryGetKernel %s", name);
  if (strcmp(name + strlen(name) - 2, "_0") != 0) return NOT_FOUND;
  *kernel = library;
  return SUCCESS;
}

int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  USE();
  note("cuKernelSetAttribute device %d attribute %d value %d", device, attribute, value);
  if (attribute == 8 && value > max_smem) return INVALID_VALUE;
  if (attribute == 8) kernel_smem[((intptr_t)kernel) & 0xff][device] = value;
  return SUCCESS;
}

int cuKernelGetFunction(void** function, void* kernel) {
  USE_OUTSIDE_CAPTURE();
  note("cuKernelGetFunction device %d", fake_current_device());
  if (depth == 0) return INVALID_CONTEXT;
  kernel_loaded[((intptr_t)kernel) & 0xff][fake_current_device()] = 1;
  *function = (void*)(intptr_t)0x99;
  return SUCCESS;
}

int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  USE_OUTSIDE_CAPTURE();
  if (depth == 0) return INVALID_CONTEXT;
  *address = atomic_fetch_add(&next_address, (bytes + 511) / 512 * 512);
  note("cuMemAlloc device %d bytes %zu address %#llx", fake_current_device(), bytes, *address);
  return SUCCESS;
}

int cuMemsetD32Async(unsigned long long address, unsigned value, size_t count, void* stream) {
  USE();
  note("cuMemsetD32Async address %#llx value %u count %zu stream %p", address, value, count, stream);
  if (capturing && (intptr_t)stream < 3) return CAPTURE_IMPLICIT; /* a default stream */
  return SUCCESS;
}

int cuStreamCreate(void** stream, unsigned flags) {
  USE();
  note("cuStreamCreate device %d flags %u", fake_current_device(), flags);
  if (depth == 0) return INVALID_CONTEXT;
  *stream = (void*)(intptr_t)0x55;
  return SUCCESS;
}

int cuStreamSynchronize(void* stream) {
  USE_OUTSIDE_CAPTURE();
  note("cuStreamSynchronize stream %p", stream);
  return SUCCESS;
}

int cuStreamGetId(void* stream, unsigned long long* id) {
  USE();
  *id = (unsigned long long)(intptr_t)stream + 7;
  return SUCCESS;
}

int cuStreamIsCapturing(void* stream, int* status) {
  USE();
  if (capturing && stream == NULL) return CAPTURE_IMPLICIT;
  *status = ((intptr_t)stream & CAPTURED) != 0;
  return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  USE();
  const int old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return SUCCESS;
}

int cuTensorMapEncodeTiled(TensorMap* map, int dtype, uint32_t rank, void* address, const uint64_t* dims,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  USE();
  static const uint32_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  static const uint32_t spans[] = {1 << 20, 32, 64, 128};
  char text[128];
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || address == NULL) return INVALID_VALUE;
  if (rank < 3 || rank > 5 || interleave || promotion != 2 || fill) return INVALID_VALUE;
  for (uint32_t i = 0; i < rank; i++) {
    if (dims[i] == 0 || dims[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
    if (i + 1 < rank && (strides[i] % 16 || strides[i] >= 1ull << 40)) return INVALID_VALUE;
  }
  if (box[0] * bytes[dtype] % 16 || box[0] * bytes[dtype] > spans[swizzle]) return INVALID_VALUE;
  /* What a launch shows of the map. */
  snprintf(text, sizeof text, "%d@%p:%llu,%llu", dtype, address, (unsigned long long)dims[0],
           (unsigned long long)dims[1]);
  memset(map, 0, sizeof *map);
  memcpy(map, text, strlen(text));
  return SUCCESS;
}

int cuLaunchKernelEx(const LaunchConfig* config, void* kernel, void** params, void** extra) {
  USE();
  const int device = fake_current_device(), number = (int)((intptr_t)kernel & 0xff);
  char text[1024] = "";
  int length = 0;
  for (int i = 0; param_kinds[i] != '\0'; i++) {
    const void* p = params[i];
    if (param_kinds[i] == 'M') length += snprintf(text + length, 128, " %.100s", (const char*)p);
    if (param_kinds[i] == 'M' && (uintptr_t)p % 64 != 0) return INVALID_VALUE;
    if (param_kinds[i] == 'P') length += snprintf(text + length, 32, " %p", *(void* const*)p);
    if (param_kinds[i] == 'I') length += snprintf(text + length, 32, " %d", *(const int32_t*)p);
    if (param_kinds[i] == 'L') length += snprintf(text + length, 32, " %lld", *(const long long*)p);
    if (param_kinds[i] == 'F') length += snprintf(text + length, 32, " %.9g", *(const float*)p);
  }
  note("cuLaunchKernelEx device %d stream %p grid %u block %u smem %u params%s", device, config->stream,
       config->grid[0], config->block[0], config->smem, text);
  if (depth == 0) return INVALID_CONTEXT;
  if ((intptr_t)kernel >> 8 != 0x10) return INVALID_HANDLE;
  if (capturing && !kernel_loaded[number][device]) return CAPTURE_UNSUPPORTED;
  if (config->grid[0] == 0 || config->grid[1] != 1 || config->grid[2] != 1 || config->num_attributes || extra)
    return INVALID_VALUE;
  if (config->block[1] != 1 || config->block[2] != 1) return INVALID_VALUE;
  if ((int)config->smem > kernel_smem[number][device]) return INVALID_VALUE;
  return launch_result;
}

/* Answers like NVML, NVIDIA's library, for two devices: process 100 computes on both, 200 on the second, which has no
   links and does not tell its power. What is asked here has the types of NVIDIA's header. */

#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { int second; } *Device;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } Process;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
  unsigned field, scope;
  long long timestamp, latency;
  int type, code;
  union { double d; unsigned long long ull; } value;
} Field;

static int first = 0, second = 1;
static unsigned long long links_asked = 0;

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  return *device = (Device)(index ? &second : &first), SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
  unsigned there = device->second ? 2 : 1, room = *count;
  *count = there;
  if (room < there) return INSUFFICIENT_SIZE;
  memset(processes, 0, there * sizeof *processes);
  processes[0].pid = 100, processes[0].used = device->second ? 3000 : 1000;
  if (device->second) processes[1].pid = 200, processes[1].used = 500;
  return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(Device device, Utilization *found) {
  return found->gpu = device->second ? 40 : 80, found->memory = 7, SUCCESS;
}
int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
  return *milliwatts = 250000, device->second ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *reasons) {
  return *reasons = device->second ? 0x41 : 0x04, SUCCESS; /* idle and heat; a cap of power */
}
int nvmlDeviceGetPcieThroughput(Device device, unsigned counter, unsigned *kilobytes) {
  return *kilobytes = counter ? 20 : 10, SUCCESS;
}
int nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
  ++links_asked;
  for (int at = 0; at < count; ++at) {
    fields[at].code = device->second || fields[at].scope != 0xFFFFFFFFu ? NOT_SUPPORTED : SUCCESS;
    fields[at].value.ull = (fields[at].field == 138 ? 1000 : 3000) * links_asked;
  }
  return SUCCESS;
}
const char *nvmlErrorString(int code) { return "an error"; }

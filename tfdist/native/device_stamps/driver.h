// The few functions of CUDA's driver that time a stream, found when they are needed.
//
// Nothing here needs CUDA to compile or to load: the types are those of the driver's interface, which is stable, and a
// machine without the driver has none of the functions.

#ifndef TFDIST_NATIVE_DEVICE_STAMPS_DRIVER_H_
#define TFDIST_NATIVE_DEVICE_STAMPS_DRIVER_H_

#include <dlfcn.h>

#include <cstddef>
#include <type_traits>

namespace tfdist::device_stamps {

using Context = void*;
using Event = void*;
using Stream = void*;
using Memory = unsigned long long;  // of the device: an address

constexpr int kSuccess = 0;
constexpr int kNotReady = 600;
constexpr unsigned kDoesNotBlock = 1;  // of a stream: it does not wait for the default one

struct Driver {
  int (*context)(Context*) = nullptr;
  int (*enter)(Context) = nullptr;
  int (*make_stream)(Stream*, unsigned) = nullptr;
  int (*make_event)(Event*, unsigned) = nullptr;
  int (*end_event)(Event) = nullptr;
  int (*record)(Event, Stream) = nullptr;
  int (*query)(Event) = nullptr;
  int (*wait)(Event) = nullptr;
  int (*elapsed)(float*, Event, Event) = nullptr;  // milliseconds
  int (*make_memory)(void**, std::size_t, unsigned) = nullptr;  // of the host, to which a device may copy at any time
  int (*end_memory)(void*) = nullptr;
  int (*copy)(void*, Memory, std::size_t, Stream) = nullptr;

  // Loads a driver; false where it is not there, or lacks one of these.
  bool load(const char* path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto take = [library](auto* into, const char* name, const char* older = nullptr) {
      void* found = dlsym(library, name);
      if (found == nullptr && older != nullptr) found = dlsym(library, older);
      *into = reinterpret_cast<std::remove_pointer_t<decltype(into)>>(found);
      return found != nullptr;
    };
    return take(&context, "cuCtxGetCurrent") && take(&enter, "cuCtxSetCurrent") &&
           take(&make_stream, "cuStreamCreate") && take(&make_event, "cuEventCreate") &&
           take(&end_event, "cuEventDestroy_v2") && take(&record, "cuEventRecord") && take(&query, "cuEventQuery") &&
           take(&wait, "cuEventSynchronize") && take(&elapsed, "cuEventElapsedTime_v2", "cuEventElapsedTime") &&
           take(&make_memory, "cuMemHostAlloc") && take(&end_memory, "cuMemFreeHost") &&
           take(&copy, "cuMemcpyDtoHAsync_v2");
  }
};

}  // namespace tfdist::device_stamps

#endif  // TFDIST_NATIVE_DEVICE_STAMPS_DRIVER_H_

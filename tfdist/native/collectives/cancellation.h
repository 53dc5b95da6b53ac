// Whether the step that a kernel belongs to has been broken off, because another of its kernels has failed.
//
// TensorFlow's C interface does not tell. A kernel that waits for others must hear of it, or the step would never end.

#ifndef TFDIST_NATIVE_COLLECTIVES_CANCELLATION_H_
#define TFDIST_NATIVE_COLLECTIVES_CANCELLATION_H_

#include <cstdint>
#include <functional>

#include "tensorflow/c/kernels.h"

namespace tfdist::collectives {

class Cancellation {
 public:
  // Valid until TensorFlow was told that the kernel has ended.
  explicit Cancellation(TF_OpKernelContext* context);

  // Asks for one call when the step is broken off, in any thread. False: it has been already, and nothing is called.
  bool watch(std::function<void()> broken_off);

  // Takes that back; where the step is being broken off at this moment, the call may come all the same.
  void unwatch();

 private:
  void* const manager_;
  std::int64_t token_ = 0;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_CANCELLATION_H_

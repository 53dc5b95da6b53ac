// The only file that is written against TensorFlow's C++ classes, whose headers take seconds to compile.

#include "cancellation.h"

#include <utility>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist::collectives {
namespace {

tensorflow::CancellationManager* of(void* manager) { return static_cast<tensorflow::CancellationManager*>(manager); }

}  // namespace

// What the C interface calls a context is the C++ class's; eagerly there may be nobody to tell.
Cancellation::Cancellation(TF_OpKernelContext* context)
    : manager_(reinterpret_cast<tensorflow::OpKernelContext*>(context)->cancellation_manager()) {}

bool Cancellation::watch(std::function<void()> broken_off) {
  if (manager_ == nullptr) return true;
  token_ = of(manager_)->get_cancellation_token();
  return of(manager_)->RegisterCallback(token_, std::move(broken_off));
}

void Cancellation::unwatch() {
  if (manager_ != nullptr) of(manager_)->TryDeregisterCallback(token_);
}

}  // namespace tfdist::collectives

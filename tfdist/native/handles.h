// TensorFlow's C objects, deleted with what owns them.

#ifndef TFDIST_NATIVE_HANDLES_H_
#define TFDIST_NATIVE_HANDLES_H_

#include <memory>

#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace tfdist {

template <auto Delete>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Delete(pointer);
  }
};

using Status = std::unique_ptr<TF_Status, Deleter<TF_DeleteStatus>>;
using Tensor = std::unique_ptr<TF_Tensor, Deleter<TF_DeleteTensor>>;

}  // namespace tfdist

#endif  // TFDIST_NATIVE_HANDLES_H_

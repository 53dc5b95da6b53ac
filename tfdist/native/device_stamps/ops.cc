// The op that stamps a step on a GPU: it marks a place in the stream of the GPU's kernels, and waits for nothing.
//
// The stream is behind TensorFlow's own interface (stream_executor), which no part of CUDA is needed for. TensorFlow's C
// interface gives it to pluggable devices only.

#include <cstddef>
#include <cstdint>

#include "events.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/stream_executor/stream.h"

namespace tfdist::device_stamps {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What this process stamps with, once it was joined with the rows. It stays: kernels that TensorFlow keeps use it.
struct Process {
  Driver driver;
  Sink sink;
  Events events{driver, sink};
};
Process* joined = nullptr;

class DeviceStamp final : public tensorflow::OpKernel {
 public:
  explicit DeviceStamp(OpKernelConstruction* construction) : OpKernel(construction) {
    std::int64_t column = 0, place = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &target_.rows));
    OP_REQUIRES_OK(construction, construction->GetAttr("column", &column));
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &place));
    target_.column = static_cast<std::size_t>(column), target_.place = static_cast<std::size_t>(place);
    OP_REQUIRES(construction, joined != nullptr, absl::FailedPreconditionError("this process has no rows of stamps."));
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const Tensor& row = context->input(0);
    OP_REQUIRES(context, row.NumElements() == 1, absl::InvalidArgumentError("row is not one number."));
    Target target = target_;
    target.number = *static_cast<const std::int64_t*>(row.data());
    Memory value = 0;
    if (context->num_inputs() > 1) {
      const Tensor& given = context->input(1);
      OP_REQUIRES(context, given.NumElements() == 1, absl::InvalidArgumentError("a value is not one number."));
      value = reinterpret_cast<Memory>(given.data());
    }
    auto* const device = context->op_device_context();
    auto* const stream = device == nullptr ? nullptr : device->stream();
    OP_REQUIRES(context, stream != nullptr, absl::InternalError("the device of this op has no stream."));
    joined->events.mark(target, stream->platform_specific_handle().stream, value);
  }

 private:
  Target target_;
};

absl::Status no_outputs(tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); }

REGISTER_OP("TfdistDeviceStamp")
    .Input("row: int64")
    .Input("values: count * double")
    .Attr("count: int >= 0")  // 0 or 1
    .Attr("rows: int")
    .Attr("column: int")  // of the time
    .Attr("place: int")   // of the value
    .SetIsStateful()
    .SetShapeFn(no_outputs);

REGISTER_KERNEL_BUILDER(Name("TfdistDeviceStamp").Device(tensorflow::DEVICE_GPU).HostMemory("row"), DeviceStamp);

}  // namespace
}  // namespace tfdist::device_stamps

// Lets ops write by these functions, with a driver; 1, or 0 where it cannot be loaded. A second call changes nothing.
extern "C" __attribute__((visibility("default"))) int tfdist_device_stamps_join(
    const char* driver, void (*set)(std::int64_t, std::int64_t, std::size_t, double),
    void (*leave)(std::int64_t, std::int64_t)) {
  using namespace tfdist::device_stamps;
  if (joined != nullptr) return 1;
  auto* const process = new Process;
  process->sink = {set, leave};
  if (!process->driver.load(driver)) return delete process, 0;
  joined = process;
  return 1;
}

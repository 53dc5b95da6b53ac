// TensorFlow ops that stamp a step.
//
// The first op of a step opens a row and returns its number; each other takes the number, writes into the row, and
// returns nothing: what it waits for are control edges. They are stateful, so TensorFlow leaves none out.
//
// They are written against TensorFlow's C++ classes, as the C interface has no way to say that an op is not expensive. One
// that is taken for expensive, and every op is until it has run a hundred times, goes to another thread when it is not
// the only one that is ready: it comes late, which a stamp must not, and waking up the thread costs more than all else.
// So none of them takes long: the norm of a large gradient is measured in a thread of its own, for which no step waits.

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../collectives/helpers.h"
#include "rows.h"
#include "squares.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist::stamps {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr std::size_t kSlots = 4096;  // as in tfdist/native/stamp_ops.py
constexpr std::int64_t kAtOnce = 64 * 1024;  // numbers that take less time than waking up a thread does

// All rows of this process, by their number. They are never let go of: kernels that TensorFlow keeps write into them.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Rows>> all;

  static Registry& of_process() {
    static auto* const registry = new Registry;
    return *registry;
  }

  Rows* find(std::int64_t number) {
    const std::lock_guard<std::mutex> guard(mutex);
    return number >= 0 && number < static_cast<std::int64_t>(all.size()) ? all[static_cast<std::size_t>(number)].get()
                                                                         : nullptr;
  }
};

// Seconds of the wall clock, as tf.timestamp has them.
double now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What all of them have: where they write, and the column of the time, or of the norm.
class Stamp : public tensorflow::OpKernel {
 public:
  explicit Stamp(OpKernelConstruction* construction) : OpKernel(construction) {
    const std::int64_t number = attribute(construction, "rows");
    rows_ = Registry::of_process().find(number);
    column_ = static_cast<std::size_t>(attribute(construction, "column"));
    OP_REQUIRES(construction, rows_ != nullptr,
                absl::FailedPreconditionError("there are no rows with this number in this process."));
  }

  bool IsExpensive() override { return false; }

 protected:
  static std::int64_t attribute(OpKernelConstruction* construction, const char* name) {
    std::int64_t value = 0;
    const absl::Status status = construction->GetAttr(name, &value);
    if (!status.ok()) construction->CtxFailure(status);
    return value;
  }

  // The number of the row, the first input of all ops but the one that opens it; -1 and a failure if it is none.
  static std::int64_t row(OpKernelContext* context) {
    const Tensor& tensor = context->input(0);
    if (tensor.NumElements() == 1) return *static_cast<const std::int64_t*>(tensor.data());
    context->CtxFailure(absl::InvalidArgumentError("row is not one number."));
    return -1;
  }

  Rows* rows_ = nullptr;
  std::size_t column_ = 0;
};

class Begin final : public Stamp {
 public:
  using Stamp::Stamp;

  void Compute(OpKernelContext* context) override {
    const std::int64_t number = rows_->begin();
    rows_->set(number, column_, now());
    Tensor* made = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &made));
    *static_cast<std::int64_t*>(made->data()) = number;
  }
};

class Mark final : public Stamp {
 public:
  using Stamp::Stamp;

  void Compute(OpKernelContext* context) override {
    const double time = now();
    const std::int64_t number = row(context);
    rows_->set(number, column_, time);
    rows_->leave(number);
  }
};

// Behind all that has effects; the last one to leave puts the row into the ring.
class End final : public Stamp {
 public:
  explicit End(OpKernelConstruction* construction)
      : Stamp(construction),
        place_(static_cast<std::size_t>(attribute(construction, "value"))),
        count_(static_cast<double>(attribute(construction, "count"))),
        others_(attribute(construction, "others")) {}

  void Compute(OpKernelContext* context) override {
    const double time = now();
    const std::int64_t number = row(context);
    rows_->set(number, column_, time);
    rows_->set(number, place_, count_);
    rows_->end(number, others_);
  }

 private:
  const std::size_t place_;    // where a constant belongs, the number of reductions
  const double count_;         // the constant
  const std::int64_t others_;  // how many ops write into the row beside this one
};

// Numbers of a tensor of any dtype that the ops take.
struct Numbers {
  tensorflow::DataType type;
  const void* data;

  explicit Numbers(const Tensor& tensor) : type(tensor.dtype()), data(tensor.data()) {}

  template <typename Function>
  double with(std::int64_t begin, const Function& function) const {
    switch (type) {
      case tensorflow::DT_HALF:
        return function(static_cast<const collectives::Half*>(data) + begin);
      case tensorflow::DT_BFLOAT16:
        return function(static_cast<const collectives::BHalf*>(data) + begin);
      case tensorflow::DT_FLOAT:
        return function(static_cast<const float*>(data) + begin);
      default:
        return function(static_cast<const double*>(data) + begin);
    }
  }
};

double wide(collectives::Half number) { return collectives::internal::widen(number); }
double wide(collectives::BHalf number) { return collectives::internal::widen(number); }
double wide(double number) { return number; }

// The loss, and the time at which it is known.
class Loss final : public Stamp {
 public:
  explicit Loss(OpKernelConstruction* construction)
      : Stamp(construction), place_(static_cast<std::size_t>(attribute(construction, "value"))) {}

  void Compute(OpKernelContext* context) override {
    const double time = now();
    const std::int64_t number = row(context);
    const Tensor& loss = context->input(1);
    const std::int64_t count = loss.NumElements();
    const double sum = Numbers(loss).with(0, [count](const auto* values) {
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i) total += wide(values[i]);
      return total;
    });
    rows_->set(number, column_, time);
    rows_->set(number, place_, sum);
    rows_->leave(number);
  }

 private:
  const std::size_t place_;
};

// A measurement of a norm: holds the gradient until it is done, longer than the op may run.
class Measurement {
 public:
  Measurement(Rows* rows, std::size_t column, std::int64_t number) : rows_(rows), column_(column), number_(number) {}

  void scaled_by(double scale) { scale_ = scale; }

  void add(const Tensor& tensor) {
    const Numbers numbers(tensor);
    for (std::int64_t begin = 0; begin < tensor.NumElements(); begin += kAtOnce) {
      pieces_.push_back({numbers, begin, std::min(kAtOnce, tensor.NumElements() - begin)});
    }
    count_ += tensor.NumElements();
    kept_.push_back(tensor);
  }

  bool is_short() const { return count_ <= kAtOnce; }

  void run() {
    std::vector<double> sums(pieces_.size());
    const auto one = [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      sums[i] = piece.numbers.with(piece.begin, [&piece](const auto* numbers) {
        return squares(numbers, static_cast<std::size_t>(piece.count));
      });
    };
    if (!is_short()) collectives::helpers_of_process().run(pieces_.size(), one);
    else for (std::size_t i = 0; i < pieces_.size(); ++i) one(i);
    double total = 0;
    for (const double sum : sums) total += sum;  // in one order, whoever has added up what
    const double norm = std::sqrt(total / (scale_ * scale_));
    kept_.clear();
    rows_->set(number_, column_, norm == 0 ? kLeast : norm);
    rows_->leave(number_);
  }

 private:
  static constexpr double kLeast = 1e-300;  // stands for 0, which is that of no measurement
  struct Piece {
    Numbers numbers;
    std::int64_t begin, count;
  };

  Rows* const rows_;
  const std::size_t column_;
  const std::int64_t number_;
  double scale_ = 1;
  std::int64_t count_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Tensor> kept_;
};

// The norm of a gradient in one of so many steps; a scale, if there is one, comes before the gradient.
class Norm final : public Stamp {
 public:
  explicit Norm(OpKernelConstruction* construction)
      : Stamp(construction), every_(attribute(construction, "count")), is_scaled_(attribute(construction, "scales") > 0) {
    OP_REQUIRES(construction, every_ > 0, absl::InvalidArgumentError("count must be at least 1."));
  }

  void Compute(OpKernelContext* context) override {
    const std::int64_t number = row(context);
    if (number % every_ != 0) return rows_->leave(number);
    const auto one = std::make_shared<Measurement>(rows_, column_, number);
    if (is_scaled_) {
      const Tensor& scale = context->input(1);
      OP_REQUIRES(context, scale.NumElements() == 1, absl::InvalidArgumentError("scale is not one number."));
      one->scaled_by(*static_cast<const double*>(scale.data()));
    }
    for (int i = is_scaled_ ? 2 : 1; i < context->num_inputs(); ++i) one->add(context->input(i));
    if (one->is_short()) return one->run();
    try {
      std::thread([one] { one->run(); }).detach();  // who reads the rows waits for it
    } catch (const std::system_error&) {            // there is no room for a thread
      one->run();
    }
  }

 private:
  const std::int64_t every_;
  const bool is_scaled_;
};

// What is under way in this process, by a number that Python gives it: 1 from one note to the other, else 0.
std::atomic<std::int64_t>& under_way(std::size_t slot) {
  static std::atomic<std::int64_t> slots[kSlots];
  return slots[slot];
}

// Says that something is under way from now on, or no more. It has no input: what it waits for are control edges.
class Note final : public tensorflow::OpKernel {
 public:
  explicit Note(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
    OP_REQUIRES_OK(construction, construction->GetAttr("value", &value_));
    OP_REQUIRES(construction, slot_ >= 0 && slot_ < static_cast<std::int64_t>(kSlots),
                absl::InvalidArgumentError("there is no such slot."));
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext*) override { under_way(static_cast<std::size_t>(slot_)) = value_; }

 private:
  std::int64_t slot_ = 0, value_ = 0;
};

absl::Status no_outputs(tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); }
absl::Status a_scalar(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("TfdistStampBegin").Output("row: int64").Attr("rows: int").Attr("column: int").SetIsStateful().SetShapeFn(a_scalar);
REGISTER_OP("TfdistStamp").Input("row: int64").Attr("rows: int").Attr("column: int").SetIsStateful().SetShapeFn(no_outputs);
REGISTER_OP("TfdistStampEnd")
    .Input("row: int64")
    .Attr("rows: int")
    .Attr("column: int")
    .Attr("value: int")
    .Attr("count: int")
    .Attr("others: int")
    .SetIsStateful()
    .SetShapeFn(no_outputs);
REGISTER_OP("TfdistStampLoss")
    .Input("row: int64")
    .Input("loss: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("rows: int")
    .Attr("column: int")
    .Attr("value: int")
    .SetIsStateful()
    .SetShapeFn(no_outputs);
REGISTER_OP("TfdistStampNorm")
    .Input("row: int64")
    .Input("scale: scales * double")
    .Input("values: T")
    .Attr("scales: int >= 0")  // 0 or 1
    .Attr("T: list({half, bfloat16, float, double}) >= 1")
    .Attr("rows: int")
    .Attr("column: int")
    .Attr("count: int")
    .SetIsStateful()
    .SetShapeFn(no_outputs);

REGISTER_OP("TfdistNote").Attr("slot: int").Attr("value: int").SetIsStateful().SetShapeFn(no_outputs);

REGISTER_KERNEL_BUILDER(Name("TfdistNote").Device(tensorflow::DEVICE_CPU), Note);
REGISTER_KERNEL_BUILDER(Name("TfdistStampBegin").Device(tensorflow::DEVICE_CPU), Begin);
REGISTER_KERNEL_BUILDER(Name("TfdistStamp").Device(tensorflow::DEVICE_CPU), Mark);
REGISTER_KERNEL_BUILDER(Name("TfdistStampEnd").Device(tensorflow::DEVICE_CPU), End);
// For a step on a GPU, whose other stamps are those of ../device_stamps: these note when the host began to hand out the
// step, and when it had done so. On the GPU, because what goes from there to the processor waits for the GPU.
REGISTER_KERNEL_BUILDER(Name("TfdistStampBegin").Device(tensorflow::DEVICE_GPU).HostMemory("row"), Begin);
REGISTER_KERNEL_BUILDER(Name("TfdistStampEnd").Device(tensorflow::DEVICE_GPU).HostMemory("row"), End);
REGISTER_KERNEL_BUILDER(Name("TfdistStampLoss").Device(tensorflow::DEVICE_CPU), Loss);
REGISTER_KERNEL_BUILDER(Name("TfdistStampNorm").Device(tensorflow::DEVICE_CPU), Norm);

}  // namespace
}  // namespace tfdist::stamps

#define TFDIST_EXPORT __attribute__((visibility("default")))
extern "C" {

// Makes rows of which so many may be open at once; their number.
TFDIST_EXPORT std::int64_t tfdist_stamps_make(std::size_t rows, std::size_t width, std::size_t open) {
  auto& registry = tfdist::stamps::Registry::of_process();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  registry.all.push_back(std::make_unique<tfdist::stamps::Rows>(rows, width, open));
  return static_cast<std::int64_t>(registry.all.size()) - 1;
}

// Copies rows, once those of steps that have ended are whole or so many looks have found that they are not; how many have
// ended since they were made.
TFDIST_EXPORT std::int64_t tfdist_stamps_read(std::int64_t number, double* into, std::int64_t looks) {
  constexpr auto kLook = std::chrono::microseconds(200);
  const tfdist::stamps::Rows& rows = *tfdist::stamps::Registry::of_process().find(number);
  for (std::int64_t look = 0; rows.pending() > 0 && look < looks; ++look) std::this_thread::sleep_for(kLook);
  return rows.read(into);
}

// Write into a row from elsewhere, and leave it.
TFDIST_EXPORT void tfdist_stamps_set(std::int64_t rows, std::int64_t number, std::size_t column, double value) {
  tfdist::stamps::Registry::of_process().find(rows)->set(number, column, value);
}
TFDIST_EXPORT void tfdist_stamps_leave(std::int64_t rows, std::int64_t number) {
  tfdist::stamps::Registry::of_process().find(rows)->leave(number);
}

// Copies the first so many slots.
TFDIST_EXPORT std::int64_t tfdist_notes_read(std::size_t count, std::int64_t* into) {
  for (std::size_t slot = 0; slot < count && slot < tfdist::stamps::kSlots; ++slot) {
    into[slot] = tfdist::stamps::under_way(slot);
  }
  return 0;
}
}

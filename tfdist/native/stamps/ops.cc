// TensorFlow ops that stamp a step, against TensorFlow's C interface, as records.cc is.
//
// The first op of a step opens a row and returns its number; each other takes the number, writes into the row, and
// returns nothing: what it waits for are control edges. They are stateful, so TensorFlow leaves none out. None of them takes
// long, so TensorFlow comes to run them where it stands instead of waking up a thread for them, as it always would for an
// asynchronous one. The norm of a large gradient is measured in a thread of its own, for which the step does not wait.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../collectives/helpers.h"
#include "../handles.h"
#include "rows.h"
#include "squares.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace tfdist::stamps {
namespace {

constexpr std::size_t kAtOnce = 64 * 1024;  // numbers that take less time than waking up a thread does

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

bool ok(const Status& status) { return TF_GetCode(status.get()) == TF_OK; }

// What an op's attributes say; of one that it does not have, 0.
struct Kernel {
  Rows* rows = nullptr;
  std::int64_t column = 0;  // of the time, or of the norm
  std::int64_t value = 0;   // the column of a number that comes with it
  std::int64_t count = 0;   // a constant for that column; how many others write; in how many steps one is measured
  std::int64_t others = 0;
};

void* new_kernel(TF_OpKernelConstruction* construction) {
  const Status status(TF_NewStatus());
  auto kernel = std::make_unique<Kernel>();
  std::int64_t number = 0;
  const std::pair<const char*, std::int64_t*> every[] = {{"rows", &number},
                                                         {"column", &kernel->column},
                                                         {"value", &kernel->value},
                                                         {"count", &kernel->count},
                                                         {"others", &kernel->others}};
  for (const auto& [name, into] : every) {
    if (ok(status) && TF_OpKernelConstruction_HasAttr(construction, name, status.get())) {
      TF_OpKernelConstruction_GetAttrInt64(construction, name, into, status.get());
    }
  }
  kernel->rows = Registry::of_process().find(number);
  if (ok(status) && kernel->rows == nullptr) {
    const std::string message = "there are no rows with number " + std::to_string(number) + " in this process.";
    TF_SetStatus(status.get(), TF_FAILED_PRECONDITION, message.c_str());
  }
  if (!ok(status)) TF_OpKernelConstruction_Failure(construction, status.get());
  return kernel.release();
}

void delete_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

// One execution of an op.
class Call {
 public:
  explicit Call(TF_OpKernelContext* context) : context_(context) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool good() const { return ok(status_); }

  TF_Tensor* input(int index) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, index, &tensor, status_.get());
    kept_.emplace_back(tensor);
    return tensor;
  }

  // An input that is kept longer than the call.
  Tensor taken(int index) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, index, &tensor, status_.get());
    return Tensor(tensor);
  }

  int inputs() const { return TF_NumInputs(context_); }

  // The number of the row, the first input of all ops but the one that opens it.
  std::int64_t row() {
    TF_Tensor* const tensor = input(0);
    require(good() && TF_TensorElementCount(tensor) == 1, "row is not one number.");
    return good() ? *static_cast<const std::int64_t*>(TF_TensorData(tensor)) : -1;
  }

  void output(std::int64_t number) {
    const Tensor made(TF_AllocateOutput(context_, 0, TF_INT64, nullptr, 0, sizeof(number), status_.get()));
    if (good()) *static_cast<std::int64_t*>(TF_TensorData(made.get())) = number;
  }

  void require(bool is_so, const char* otherwise) {
    if (good() && !is_so) TF_SetStatus(status_.get(), TF_INVALID_ARGUMENT, otherwise);
  }

  // Lets go of what it has, and says what went wrong.
  void close() {
    kept_.clear();
    if (!good()) TF_OpKernelContext_Failure(context_, status_.get());
  }

 private:
  TF_OpKernelContext* const context_;
  const Status status_{TF_NewStatus()};
  std::vector<Tensor> kept_;
};

void begin(void* self, TF_OpKernelContext* context) {
  const Kernel& kernel = *static_cast<Kernel*>(self);
  Call call(context);
  const std::int64_t number = kernel.rows->begin();
  kernel.rows->set(number, static_cast<std::size_t>(kernel.column), now());
  call.output(number);
  call.close();
}

void mark(void* self, TF_OpKernelContext* context) {
  const double time = now();
  const Kernel& kernel = *static_cast<Kernel*>(self);
  Call call(context);
  const std::int64_t number = call.row();
  kernel.rows->set(number, static_cast<std::size_t>(kernel.column), time);
  kernel.rows->leave(number);
  call.close();
}

// Behind all that has effects; the last one to leave puts the row into the ring.
void end(void* self, TF_OpKernelContext* context) {
  const double time = now();
  const Kernel& kernel = *static_cast<Kernel*>(self);
  Call call(context);
  const std::int64_t number = call.row();
  kernel.rows->set(number, static_cast<std::size_t>(kernel.column), time);
  kernel.rows->set(number, static_cast<std::size_t>(kernel.value), static_cast<double>(kernel.count));
  kernel.rows->end(number, kernel.others);
  call.close();
}

// Numbers of an input, of any dtype that the ops take.
struct Numbers {
  TF_DataType type;
  const void* data;
  std::size_t count;

  explicit Numbers(TF_Tensor* tensor)
      : type(TF_TensorType(tensor)),
        data(TF_TensorData(tensor)),
        count(static_cast<std::size_t>(TF_TensorElementCount(tensor))) {}

  template <typename Function>
  double with(const Function& function, std::size_t begin) const {
    switch (type) {
      case TF_HALF:
        return function(static_cast<const collectives::Half*>(data) + begin);
      case TF_BFLOAT16:
        return function(static_cast<const collectives::BHalf*>(data) + begin);
      case TF_FLOAT:
        return function(static_cast<const float*>(data) + begin);
      default:
        return function(static_cast<const double*>(data) + begin);
    }
  }

  double squares_of(std::size_t begin, std::size_t length) const {
    return with([length](const auto* numbers) { return squares(numbers, length); }, begin);
  }
};

double wide(collectives::Half number) { return collectives::internal::widen(number); }
double wide(collectives::BHalf number) { return collectives::internal::widen(number); }
double wide(double number) { return number; }

// The loss, and the time at which it is known.
void loss(void* self, TF_OpKernelContext* context) {
  const double time = now();
  const Kernel& kernel = *static_cast<Kernel*>(self);
  Call call(context);
  const std::int64_t number = call.row();
  TF_Tensor* const tensor = call.input(1);
  if (call.good()) {
    const Numbers numbers(tensor);
    const auto sum = [&numbers](const auto* values) {
      double total = 0;
      for (std::size_t i = 0; i < numbers.count; ++i) total += wide(values[i]);
      return total;
    };
    kernel.rows->set(number, static_cast<std::size_t>(kernel.column), time);
    kernel.rows->set(number, static_cast<std::size_t>(kernel.value), numbers.with(sum, 0));
    kernel.rows->leave(number);
  }
  call.close();
}

// A measurement of a norm: holds the gradient until it is done, longer than the op may run.
class Norm {
 public:
  Norm(const Kernel& kernel, std::int64_t number) : kernel_(kernel), number_(number) {}

  void scaled_by(TF_Tensor* tensor) { scale_ = *static_cast<const double*>(TF_TensorData(tensor)); }

  // Takes a tensor over.
  void add(Tensor tensor) {
    const Numbers numbers(tensor.get());
    for (std::size_t begin = 0; begin < numbers.count; begin += kAtOnce) {
      pieces_.push_back({numbers, begin, std::min(kAtOnce, numbers.count - begin)});
      count_ += pieces_.back().count;
    }
    kept_.push_back(std::move(tensor));
  }

  std::size_t count() const { return count_; }  // of numbers

  void measure() {
    std::vector<double> sums(pieces_.size());
    const auto one = [&](std::size_t i) { sums[i] = pieces_[i].numbers.squares_of(pieces_[i].begin, pieces_[i].count); };
    if (count_ > kAtOnce) collectives::helpers_of_process().run(pieces_.size(), one);
    else for (std::size_t i = 0; i < pieces_.size(); ++i) one(i);
    double total = 0;
    for (const double sum : sums) total += sum;  // in one order, whoever has added up what
    const double norm = std::sqrt(total / (scale_ * scale_));
    kept_.clear();
    kernel_.rows->set(number_, static_cast<std::size_t>(kernel_.column), norm == 0 ? kLeast : norm);
    kernel_.rows->leave(number_);
  }

 private:
  static constexpr double kLeast = 1e-300;  // stands for 0, which is that of no measurement
  struct Piece {
    Numbers numbers;
    std::size_t begin, count;
  };

  const Kernel kernel_;  // a copy: TensorFlow may delete its own as soon as the step has ended
  const std::int64_t number_;
  double scale_ = 1;
  std::size_t count_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Tensor> kept_;
};

template <bool is_scaled>
void norm(void* self, TF_OpKernelContext* context) {
  const Kernel& kernel = *static_cast<Kernel*>(self);
  Call call(context);
  const std::int64_t number = call.row();
  if (!call.good()) return call.close();
  if (kernel.count < 1 || number % kernel.count != 0) {
    kernel.rows->leave(number);
    return call.close();
  }
  const auto one = std::make_shared<Norm>(kernel, number);
  if (is_scaled) {
    TF_Tensor* const scale = call.input(1);
    call.require(call.good() && TF_TensorElementCount(scale) == 1, "scale is not one number.");
    if (call.good()) one->scaled_by(scale);
  }
  for (int i = is_scaled ? 2 : 1; call.good() && i < call.inputs(); ++i) {
    Tensor tensor = call.taken(i);
    if (call.good()) one->add(std::move(tensor));
  }
  if (!call.good()) return call.close();
  if (one->count() <= kAtOnce) {
    one->measure();
    return call.close();
  }
  try {
    std::thread([one] { one->measure(); }).detach();  // who reads the rows waits for it
  } catch (const std::system_error&) {  // there is no room for a thread
    one->measure();
  }
  call.close();
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const shape = TF_ShapeInferenceContextScalar(context);
  TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

void no_shapes(TF_ShapeInferenceContext*, TF_Status*) {}

struct Definition {
  const char* name;
  std::vector<const char*> inputs;
  std::vector<const char*> attributes;
  void (*compute)(void*, TF_OpKernelContext*);
};

// What cannot be registered is missing when the library is loaded, and is reported there.
bool register_op(const Definition& op) {
  const Status status(TF_NewStatus());
  TF_OpDefinitionBuilder* definition = TF_NewOpDefinitionBuilder(op.name);
  const bool opens = op.inputs.empty();
  for (const char* input : op.inputs) TF_OpDefinitionBuilderAddInput(definition, input);
  if (opens) TF_OpDefinitionBuilderAddOutput(definition, "row: int64");
  TF_OpDefinitionBuilderAddAttr(definition, "rows: int");
  for (const char* attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(definition, attribute);
  TF_OpDefinitionBuilderSetIsStateful(definition, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, opens ? scalar : no_shapes);
  TF_RegisterOpDefinition(definition, status.get());
  if (!ok(status)) return false;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(op.name, "CPU", new_kernel, op.compute, delete_kernel);
  TF_RegisterKernelBuilder(op.name, kernel, status.get());
  return ok(status);
}

constexpr char kFloats[] = "T: {half, bfloat16, float, double}", kLists[] = "T: list({half, bfloat16, float, double}) >= 1";

[[maybe_unused]] const bool registered[] = {
    register_op({"TfdistStampBegin", {}, {"column: int"}, begin}),
    register_op({"TfdistStamp", {"row: int64"}, {"column: int"}, mark}),
    register_op({"TfdistStampLoss", {"row: int64", "loss: T"}, {kFloats, "column: int", "value: int"}, loss}),
    register_op({"TfdistStampEnd", {"row: int64"}, {"column: int", "value: int", "count: int", "others: int"}, end}),
    register_op({"TfdistStampNorm", {"row: int64", "values: T"}, {kLists, "column: int", "count: int"}, norm<false>}),
    register_op({"TfdistStampScaledNorm",
                 {"row: int64", "scale: double", "values: T"},
                 {kLists, "column: int", "count: int"},
                 norm<true>}),
};

}  // namespace
}  // namespace tfdist::stamps

#define TFDIST_EXPORT __attribute__((visibility("default")))
extern "C" {

// Makes rows; their number.
TFDIST_EXPORT std::int64_t tfdist_stamps_make(std::size_t rows, std::size_t width) {
  auto& registry = tfdist::stamps::Registry::of_process();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  registry.all.push_back(std::make_unique<tfdist::stamps::Rows>(rows, width));
  return static_cast<std::int64_t>(registry.all.size()) - 1;
}

// Copies rows, once those of steps that have ended are whole; how many have ended since they were made.
TFDIST_EXPORT std::int64_t tfdist_stamps_read(std::int64_t number, double* into) {
  constexpr auto kLook = std::chrono::microseconds(200);
  constexpr int kLooks = 5000;  // a second: the norm of the largest gradient takes less
  const tfdist::stamps::Rows& rows = *tfdist::stamps::Registry::of_process().find(number);
  for (int look = 0; rows.pending() > 0 && look < kLooks; ++look) std::this_thread::sleep_for(kLook);
  return rows.read(into);
}
}

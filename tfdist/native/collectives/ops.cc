// TensorFlow ops that are the collectives of an engine, against TensorFlow's C interface, as records.cc is.
//
// The kernels are asynchronous: they hand their operation to the engine and return, so a thread of TensorFlow never waits
// for another member. All ops are stateful: TensorFlow neither computes them beforehand nor leaves one out, and those of a
// function begin in the order in which they were traced. Where one function has the ops of several replicas, that order
// would have one replica wait for another: their ops are the ordered ones, which take a resource, of each replica its own,
// and begin in the order of those that take the same.

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../handles.h"
#include "cancellation.h"
#include "engine.h"
#include "registry.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace tfdist::collectives {
namespace {

bool ok(const Status& status) { return TF_GetCode(status.get()) == TF_OK; }

// What an op's attributes say.
struct Kernel {
  std::int64_t engine = 0;    // below 0: a replica
  std::int64_t key = 0;
  std::int64_t argument = 0;  // the reduction, the root, or whether all members have as many rows
  std::vector<int> ranks;
  bool ordered = false;  // behind its tensors it takes a resource
};

template <bool ordered>
void* new_kernel(TF_OpKernelConstruction* construction) {
  const Status status(TF_NewStatus());
  auto kernel = std::make_unique<Kernel>();
  kernel->ordered = ordered;
  TF_OpKernelConstruction_GetAttrInt64(construction, "engine", &kernel->engine, status.get());
  if (ok(status)) TF_OpKernelConstruction_GetAttrInt64(construction, "key", &kernel->key, status.get());
  if (ok(status)) TF_OpKernelConstruction_GetAttrInt64(construction, "argument", &kernel->argument, status.get());
  std::int32_t size = 0, total = 0;
  if (ok(status)) TF_OpKernelConstruction_GetAttrSize(construction, "ranks", &size, &total, status.get());
  std::vector<std::int64_t> ranks(size > 0 ? size : 0);
  if (ok(status)) TF_OpKernelConstruction_GetAttrInt64List(construction, "ranks", ranks.data(), size, status.get());
  kernel->ranks.assign(ranks.begin(), ranks.end());
  if (!ok(status)) TF_OpKernelConstruction_Failure(construction, status.get());
  return kernel.release();
}

void delete_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

bool dtype_of(TF_DataType type, DType* dtype) {
  switch (type) {
    case TF_HALF:
      *dtype = DType::kFloat16;
      return true;
    case TF_BFLOAT16:
      *dtype = DType::kBFloat16;
      return true;
    case TF_FLOAT:
      *dtype = DType::kFloat32;
      return true;
    case TF_DOUBLE:
      *dtype = DType::kFloat64;
      return true;
    case TF_INT8:
      *dtype = DType::kInt8;
      return true;
    case TF_INT16:
      *dtype = DType::kInt16;
      return true;
    case TF_INT32:
      *dtype = DType::kInt32;
      return true;
    case TF_INT64:
      *dtype = DType::kInt64;
      return true;
    case TF_UINT8:
      *dtype = DType::kUint8;
      return true;
    case TF_UINT16:
      *dtype = DType::kUint16;
      return true;
    case TF_UINT32:
      *dtype = DType::kUint32;
      return true;
    case TF_UINT64:
      *dtype = DType::kUint64;
      return true;
    case TF_BOOL:
      *dtype = DType::kBool;
      return true;
    default:
      return false;
  }
}

// Memory of an output may be fresh from the kernel, which makes it page by page as it is written to: of 4 KiB that takes
// several times as long as the writing, of 2 MiB a fraction of it. Where it cannot be had, nothing is lost.
void use_large_pages(char* data, std::size_t bytes) {
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  if (bytes < 2 * kLargePage) return;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kLargePage - 1) / kLargePage * kLargePage, end = (address + bytes) / kLargePage * kLargePage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// One execution of an op: holds its tensors until the operation has ended, and then tells TensorFlow.
class Execution : public std::enable_shared_from_this<Execution> {
 public:
  Execution(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
      : kernel_(kernel),
        context_(context),
        // What is handed over is a function that TensorFlow has on its stack, and that ends with this call of the kernel;
        // an operation that goes on needs a copy.
        done_(*reinterpret_cast<const std::function<void()>*>(done)),
        engine_(kernel.engine < 0 ? nullptr : engines().find(kernel.engine)),
        replica_(kernel.engine < 0 ? replicas().find(-kernel.engine) : nullptr) {
    if (engine_ == nullptr && replica_ == nullptr) fail(TF_ABORTED, std::string(kBroken) + "they were stopped");
  }

  const Kernel& kernel() const { return kernel_; }
  bool good() const { return ok(status_); }
  std::size_t size() const { return kernel_.ranks.size(); }

  void fail(TF_Code code, const std::string& message) {
    if (good()) TF_SetStatus(status_.get(), code, message.c_str());
  }

  int inputs() { return TF_NumInputs(context_) - (kernel_.ordered ? 1 : 0); }

  // An input, which is kept until the end.
  TF_Tensor* input(int index) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, index, &tensor, status_.get());
    kept_.emplace_back(tensor);
    return tensor;
  }

  // An output of this shape. Its bytes, or null and a failure.
  char* output(int index, TF_DataType type, const std::vector<std::int64_t>& shape) {
    std::size_t bytes = TF_DataTypeSize(type);
    for (const std::int64_t dim : shape) bytes *= static_cast<std::size_t>(dim);
    TF_Tensor* tensor = TF_AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()), bytes,
                                          status_.get());
    if (!good()) return nullptr;
    kept_.emplace_back(tensor);
    use_large_pages(data_of(tensor), bytes);
    return data_of(tensor);
  }

  // An input with an output of its shape: the same memory where nobody else needs the input's.
  Piece in_place(int index, TF_DataType* type) {
    std::vector<std::int64_t> shape;
    {
      TF_Tensor* tensor = nullptr;
      TF_GetInput(context_, index, &tensor, status_.get());
      if (!good()) return {};
      const Tensor looked_at(tensor);
      shape = shape_of(tensor);
      *type = TF_TensorType(tensor);
    }
    int forwarded = -1;
    TF_Tensor* tensor = TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, shape.data(),
                                                        static_cast<int>(shape.size()), &forwarded, status_.get());
    if (!good()) return {};
    kept_.emplace_back(tensor);
    char* into = data_of(tensor);
    if (forwarded == index) return {into, into, TF_TensorByteSize(tensor)};
    use_large_pages(into, TF_TensorByteSize(tensor));
    TF_Tensor* from = input(index);
    return good() ? Piece{data_of(from), into, TF_TensorByteSize(from)} : Piece{};
  }

  static char* data_of(TF_Tensor* tensor) { return static_cast<char*>(TF_TensorData(tensor)); }

  static std::vector<std::int64_t> shape_of(TF_Tensor* tensor) {
    std::vector<std::int64_t> shape(TF_NumDims(tensor));
    for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = TF_Dim(tensor, static_cast<int>(i));
    return shape;
  }

  // The number of the operation, drawn once.
  std::uint64_t id() { return engine_->next_id(static_cast<std::uint64_t>(kernel_.key)); }
  bool is_near() const { return engine_->are_near(kernel_.ranks); }
  Place place() const { return engine_->place(kernel_.ranks); }
  Hosts hosts() const { return engine_->hosts(kernel_.ranks); }
  std::size_t me() const {
    const auto& ranks = kernel_.ranks;
    return std::find(ranks.begin(), ranks.end(), replica_ == nullptr ? engine_->rank() : replica_->rank) - ranks.begin();
  }

  void submit(std::unique_ptr<Operation> operation) {
    auto self = shared_from_this();
    engine_->submit(std::move(operation), kernel_.ranks, [self](const std::string& error) {
      // It had no memory for its output: the others wait for what it would have brought.
      if (!error.empty() && !self->good()) self->engine_->abort(error);
      self->end_with(error);
    });
  }

  // Ends while the operation goes on, which keeps the inputs; how that ends is told to `sending`.
  void start(std::unique_ptr<Operation> operation, std::shared_ptr<Sending> sending) {
    auto self = shared_from_this();
    engine_->submit(std::move(operation), kernel_.ranks, [self, sending](const std::string& error) {
      self->kept_.clear();
      sending->end(error);
    });
    done_();
  }

  void end_with(const std::string& error) {
    if (!error.empty()) fail(error.rfind(kBroken, 0) == 0 ? TF_ABORTED : TF_INVALID_ARGUMENT, error);
    end();
  }

  // Whether the others are replicas of this process; then it meets them, and submits nothing.
  bool is_replica() const { return replica_ != nullptr; }
  void meet(Share share) {
    auto self = shared_from_this();
    const auto cancellation = std::make_shared<Cancellation>(context_);
    share.watch = [cancellation](std::function<void()> broken_off) { return cancellation->watch(std::move(broken_off)); };
    share.unwatch = [cancellation] { cancellation->unwatch(); };
    share.done = [self](const std::string& error) {
      const auto begins = [&error](const char* mark) { return error.rfind(mark, 0) == 0; };
      const TF_Code code = begins(kWithdrawn) ? TF_CANCELLED : begins(kBroken) ? TF_ABORTED : TF_INVALID_ARGUMENT;
      if (!error.empty()) self->fail(code, error);
      self->end();
    };
    replica_->all->meet(static_cast<std::uint64_t>(kernel_.key), kernel_.ranks, me(), std::move(share));
  }

  void end() {
    kept_.clear();
    if (!good()) TF_OpKernelContext_Failure(context_, status_.get());
    done_();
  }

 private:
  const Kernel kernel_;  // a copy: TensorFlow may delete its own as soon as it was told of the end
  TF_OpKernelContext* const context_;
  const std::function<void()> done_;
  const std::shared_ptr<Engine> engine_;    // one of the two is there
  const std::shared_ptr<Replica> replica_;
  const Status status_{TF_NewStatus()};
  std::vector<Tensor> kept_;
};

using Run = void (*)(const std::shared_ptr<Execution>&);

template <Run run>
void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto call = std::make_shared<Execution>(*static_cast<Kernel*>(kernel), context, done);
  call->good() ? run(call) : call->end();
}

void all_reduce(const std::shared_ptr<Execution>& call) {
  std::vector<Piece> pieces;
  TF_DataType type = TF_FLOAT;
  for (int i = 0; call->good() && i < call->inputs(); ++i) pieces.push_back(call->in_place(i, &type));
  DType dtype;
  if (call->good() && !dtype_of(type, &dtype)) call->fail(TF_INVALID_ARGUMENT, "a dtype that has no reduction");
  if (!call->good()) return call->end();
  const auto op = static_cast<Op>(call->kernel().argument);
  if (call->is_replica()) return call->meet({What::kAllReduce, dtype, op, 0, std::move(pieces)});
  const std::uint64_t id = call->id();
  if (call->is_near()) call->submit(shared_all_reduce(call->place(), id, std::move(pieces), dtype, op));
  else call->submit(far_all_reduce(call->hosts(), id, std::move(pieces), dtype, op));
}

// The rows of a tensor.
struct Rows {
  TF_Tensor* tensor;
  TF_DataType type;
  std::vector<std::int64_t> shape;
  std::size_t bytes;  // of a row

  Rows(Execution& call, int index) : tensor(call.input(index)) {
    if (!call.good()) return;
    type = TF_TensorType(tensor);
    shape = Execution::shape_of(tensor);
    if (shape.empty()) {
      call.fail(TF_INVALID_ARGUMENT, "a scalar has no rows");
      return;
    }
    bytes = TF_DataTypeSize(type);
    for (std::size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<std::size_t>(shape[i]);
  }

  std::vector<std::int64_t> with(std::int64_t rows) const {
    std::vector<std::int64_t> changed = shape;
    changed[0] = rows;
    return changed;
  }

  // Where each member's part begins.
  std::vector<std::int64_t> cut(std::size_t members) const {
    std::vector<std::int64_t> begins;
    for (std::size_t i = 0; i <= members; ++i) {
      begins.push_back(shape[0] * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(members));
    }
    return begins;
  }
};

template <bool reduces>
void scatter(const std::shared_ptr<Execution>& call) {
  const Rows rows(*call, 0);
  DType dtype = DType::kUint8;
  if (call->good() && reduces && !dtype_of(rows.type, &dtype)) {
    call->fail(TF_INVALID_ARGUMENT, "a dtype that has no reduction");
  }
  if (!call->good()) return call->end();
  const std::size_t me = call->me();
  const std::vector<std::int64_t> cut = rows.cut(call->size());
  const std::int64_t mine = cut[me + 1] - cut[me];
  char* into = call->output(0, rows.type, rows.with(reduces ? mine : mine * static_cast<std::int64_t>(call->size())));
  if (!call->good()) return call->end();
  std::vector<std::size_t> begins;
  for (const std::int64_t row : cut) begins.push_back(static_cast<std::size_t>(row) * rows.bytes);
  const char* from = Execution::data_of(rows.tensor);
  const auto op = static_cast<Op>(call->kernel().argument);
  if (call->is_replica()) {
    const What what = reduces ? What::kReduceScatter : What::kAllToAll;
    return call->meet({what, dtype, op, 0, {{from, into, begins.back()}}, 0, 0, begins});
  }
  const std::uint64_t id = call->id();
  if (reduces && call->is_near()) call->submit(shared_reduce_scatter(call->place(), id, from, into, begins, dtype, op));
  else if (reduces) call->submit(far_reduce_scatter(call->hosts(), id, from, into, begins, dtype, op));
  else if (call->is_near()) call->submit(shared_all_to_all(call->place(), id, from, into, begins));
  else call->submit(far_all_to_all(call->hosts(), id, from, into, begins));
}

void all_gather(const std::shared_ptr<Execution>& call) {
  const Rows rows(*call, 0);
  if (!call->good()) return call->end();
  const auto allocate = [call, rows](std::uint64_t total) {
    return call->output(0, rows.type, rows.with(static_cast<std::int64_t>(total)));
  };
  const char* from = Execution::data_of(rows.tensor);
  const auto count = static_cast<std::size_t>(rows.shape[0]);
  if (call->is_replica()) {
    const Piece piece{from, nullptr, count * rows.bytes};
    return call->meet({What::kAllGather, DType::kUint8, Op::kSum, 0, {piece}, count, rows.bytes, {}, allocate});
  }
  const std::uint64_t id = call->id();
  if (call->is_near()) call->submit(shared_all_gather(call->place(), id, from, count, rows.bytes, allocate));
  else call->submit(far_all_gather(call->hosts(), id, from, count, rows.bytes, call->kernel().argument == 1, allocate));
}

void broadcast(const std::shared_ptr<Execution>& call) {
  TF_DataType type;
  const Piece piece = call->in_place(0, &type);
  if (!call->good()) return call->end();
  const auto root = static_cast<std::size_t>(call->kernel().argument);
  if (call->is_replica()) return call->meet({What::kBroadcast, DType::kUint8, Op::kSum, root, {piece}});
  const std::uint64_t id = call->id();
  if (call->is_near()) call->submit(shared_broadcast(call->place(), id, piece.from, piece.into, piece.bytes, root));
  else call->submit(far_broadcast(call->hosts(), id, piece.from, piece.into, piece.bytes, root));
}

// What one replica has goes to all others of its process; tensors are one operation.
void hand_out(const std::shared_ptr<Execution>& call) {
  std::vector<Piece> pieces;
  TF_DataType type;
  for (int i = 0; call->good() && i < call->inputs(); ++i) pieces.push_back(call->in_place(i, &type));
  if (call->good() && !call->is_replica()) call->fail(TF_INVALID_ARGUMENT, "this is for replicas of one process");
  if (!call->good()) return call->end();
  const auto root = static_cast<std::size_t>(call->kernel().argument);
  call->meet({What::kBroadcast, DType::kUint8, Op::kSum, root, std::move(pieces)});
}

// A send is two ops. The first ends when its tensor has been handed over, so what begins behind it cannot take the processor
// before that is on its way: where TensorFlow has one processor, an op that could run waits for its turn behind what runs
// already. Its output is the number of the send, or 0 where that has ended.
void send_start(const std::shared_ptr<Execution>& call) {
  TF_Tensor* tensor = call->input(0);
  char* number = call->good() ? call->output(0, TF_INT64, {}) : nullptr;
  if (!call->good()) return call->end();
  const char* from = Execution::data_of(tensor);
  const std::size_t bytes = TF_TensorByteSize(tensor);
  const auto sending = call->is_replica() ? nullptr : std::make_shared<Sending>();
  const std::int64_t sent = sending == nullptr ? 0 : sends().add(sending);
  std::memcpy(number, &sent, sizeof sent);
  if (sending == nullptr) {
    return call->meet({What::kSend, DType::kUint8, Op::kSum, call->me(), {{from, nullptr, bytes}}});
  }
  const std::uint64_t id = call->id();
  if (call->is_near()) call->start(shared_send(call->place(), id, from, bytes), sending);
  else call->start(far_send(call->hosts(), id, from, bytes), sending);
}

// The second ends when the other member has the tensor.
void send_wait(const std::shared_ptr<Execution>& call) {
  TF_Tensor* number = call->input(0);
  if (!call->good()) return call->end();
  std::int64_t sent;
  std::memcpy(&sent, Execution::data_of(number), sizeof sent);
  const std::shared_ptr<Sending> sending = sends().take(sent);
  if (sending == nullptr) return call->end();
  sending->when_ended([call](const std::string& error) { call->end_with(error); });
}

// Its input has the shape and dtype of what is received.
void receive(const std::shared_ptr<Execution>& call) {
  TF_DataType type;
  const Piece piece = call->in_place(0, &type);
  if (!call->good()) return call->end();
  if (call->is_replica()) return call->meet({What::kSend, DType::kUint8, Op::kSum, 1 - call->me(), {piece}});
  const std::uint64_t id = call->id();
  if (call->is_near()) call->submit(shared_receive(call->place(), id, piece.into, piece.bytes));
  else call->submit(far_receive(call->hosts(), id, piece.into, piece.bytes));
}

template <int tensors_fewer_than_inputs>
void shapes_of_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const std::int64_t count = TF_ShapeInferenceContextNumInputs(context) - tensors_fewer_than_inputs;
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeHandle* shape = TF_NewShapeHandle();
    TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, i, shape, status);
    TF_DeleteShapeHandle(shape);
  }
}

void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void no_shapes(TF_ShapeInferenceContext*, TF_Status*) {}

enum class Shapes { kOfInputs, kUnknown, kNone };  // of outputs

struct Definition {
  const char* name;
  const char* input;
  const char* output;  // null: none
  const char* count;   // of inputs; null: one
  Shapes shapes;
  void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
};

template <bool ordered>
bool register_one(const Definition& op, const std::string& name) {
  const Status status(TF_NewStatus());
  TF_OpDefinitionBuilder* definition = TF_NewOpDefinitionBuilder(name.c_str());
  TF_OpDefinitionBuilderAddInput(definition, op.input);
  if (ordered) TF_OpDefinitionBuilderAddInput(definition, "order: resource");
  if (op.output != nullptr) TF_OpDefinitionBuilderAddOutput(definition, op.output);
  if (op.count != nullptr) TF_OpDefinitionBuilderAddAttr(definition, op.count);
  for (const char* attr : {"T: type", "engine: int", "key: int", "argument: int", "ranks: list(int)"}) {
    TF_OpDefinitionBuilderAddAttr(definition, attr);
  }
  TF_OpDefinitionBuilderSetIsStateful(definition, true);
  const auto of_inputs = shapes_of_inputs<ordered ? 1 : 0>;
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, op.shapes == Shapes::kOfInputs  ? of_inputs
                                                              : op.shapes == Shapes::kUnknown ? unknown_shapes
                                                                                              : no_shapes);
  TF_RegisterOpDefinition(definition, status.get());
  if (!ok(status)) return false;
  TF_KernelBuilder* kernel =
      TF_NewAsyncKernelBuilder(name.c_str(), "CPU", new_kernel<ordered>, op.compute, delete_kernel);
  TF_RegisterKernelBuilder(name.c_str(), kernel, status.get());
  return ok(status);
}

// What cannot be registered is missing when the library is loaded, and is reported there.
bool register_op(const Definition& op) {
  return register_one<false>(op, std::string("Tfdist") + op.name) &&
         register_one<true>(op, std::string("TfdistOrdered") + op.name);
}

[[maybe_unused]] const bool registered[] = {
    register_op({"AllReduce", "tensors: N * T", "reduced: N * T", "N: int >= 1", Shapes::kOfInputs, compute<all_reduce>}),
    register_op({"ReduceScatter", "tensor: T", "part: T", nullptr, Shapes::kUnknown, compute<scatter<true>>}),
    register_op({"AllToAll", "tensor: T", "parts: T", nullptr, Shapes::kUnknown, compute<scatter<false>>}),
    register_op({"AllGather", "tensor: T", "rows: T", nullptr, Shapes::kUnknown, compute<all_gather>}),
    register_op({"Broadcast", "tensor: T", "value: T", nullptr, Shapes::kOfInputs, compute<broadcast>}),
    register_op({"HandOut", "tensors: N * T", "values: N * T", "N: int >= 1", Shapes::kOfInputs, compute<hand_out>}),
    register_op({"SendStart", "tensor: T", "number: int64", nullptr, Shapes::kUnknown, compute<send_start>}),
    register_op({"SendWait", "number: T", nullptr, nullptr, Shapes::kNone, compute<send_wait>}),
    register_op({"Receive", "like: T", "received: T", nullptr, Shapes::kOfInputs, compute<receive>}),
};

}  // namespace
}  // namespace tfdist::collectives

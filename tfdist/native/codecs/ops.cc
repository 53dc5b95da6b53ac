// TensorFlow ops that encode and decode gradients, against TensorFlow's C interface, as records.cc is.
//
// Each gets the rows of a matrix, and does with each what kernels.h says. Shapes are looked at before anything is read.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../collectives/helpers.h"
#include "../handles.h"
#include "floats.h"
#include "kernels.h"
#include "packing.h"
#include "philox.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace tfdist::codecs {
namespace {

constexpr std::size_t kPart = 256 * 1024;  // numbers, at least, that are worth a thread's waking up

// What an op's attributes say; 0 where it does not have one.
struct Attributes {
  std::int64_t group = 0;
  std::int64_t bits = 0;
  std::int64_t of = 0;
};

void* new_kernel(TF_OpKernelConstruction* construction) {
  const Status status(TF_NewStatus());
  auto attributes = std::make_unique<Attributes>();
  const std::pair<const char*, std::int64_t*> every[] = {
      {"group", &attributes->group}, {"bits", &attributes->bits}, {"of", &attributes->of}};
  for (const auto& [name, value] : every) {
    if (TF_GetCode(status.get()) == TF_OK && TF_OpKernelConstruction_HasAttr(construction, name, status.get())) {
      TF_OpKernelConstruction_GetAttrInt64(construction, name, value, status.get());
    }
  }
  if (TF_GetCode(status.get()) != TF_OK) TF_OpKernelConstruction_Failure(construction, status.get());
  return attributes.release();
}

void delete_kernel(void* attributes) { delete static_cast<Attributes*>(attributes); }

// The memory of a matrix.
template <typename T>
struct Matrix {
  T* data = nullptr;
  std::size_t rows = 0, columns = 0;

  T* row(std::size_t number) const { return data + number * columns; }
};

// One execution of an op: its tensors, as long as it lives.
class Call {
 public:
  explicit Call(TF_OpKernelContext* context) : context_(context) {}
  ~Call() {
    if (!good()) TF_OpKernelContext_Failure(context_, status_.get());
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool good() const { return TF_GetCode(status_.get()) == TF_OK; }

  void require(bool is_so, const std::string& otherwise) {
    if (good() && !is_so) TF_SetStatus(status_.get(), TF_INVALID_ARGUMENT, otherwise.c_str());
  }

  template <typename T>
  Matrix<const T> matrix(int index, const std::string& name) {
    TF_Tensor* const tensor = input(index, name, 2);
    if (!good()) return {};
    return {static_cast<const T*>(TF_TensorData(tensor)), static_cast<std::size_t>(TF_Dim(tensor, 0)),
            static_cast<std::size_t>(TF_Dim(tensor, 1))};
  }

  // Rows of whole groups.
  Matrix<const float> groups(int index, std::size_t group) {
    const Matrix<const float> rows = matrix<float>(index, "rows");
    require(group > 0 && group % kBlock == 0, "group is " + std::to_string(group) + "; it must be a multiple of 32.");
    require(good() && rows.columns % group == 0,
            "rows have " + std::to_string(rows.columns) + " numbers, which are no groups of " + std::to_string(group) + ".");
    return rows;
  }

  // A number for each group.
  Matrix<const float> of_groups(int index, const std::string& name, std::size_t rows, std::size_t groups) {
    const Matrix<const float> numbers = matrix<float>(index, name);
    require(good() && numbers.rows == rows && numbers.columns == groups,
            name + " is [" + std::to_string(numbers.rows) + ", " + std::to_string(numbers.columns) + "]; it must be [" +
                std::to_string(rows) + ", " + std::to_string(groups) + "], one for each group.");
    return numbers;
  }

  // From StatelessRandomGetKeyCounter.
  Philox random(int key_index, int counter_index) {
    TF_Tensor* const key = input(key_index, "key", 1);
    TF_Tensor* const counter = input(counter_index, "counter", 1);
    require(good() && TF_Dim(key, 0) == 1 && TF_Dim(counter, 0) == 2, "key has 1 number, and counter has 2.");
    if (!good()) return {};
    const auto* const keys = static_cast<const std::uint64_t*>(TF_TensorData(key));
    const auto* const counters = static_cast<const std::uint64_t*>(TF_TensorData(counter));
    require(counters[0] == 0, "the lower half of counter is not 0; it must be that of a new seed.");
    return {{static_cast<std::uint32_t>(keys[0]), static_cast<std::uint32_t>(keys[0] >> 32)},
            {static_cast<std::uint32_t>(counters[1]), static_cast<std::uint32_t>(counters[1] >> 32)}};
  }

  std::int32_t scalar(int index, const std::string& name) {
    TF_Tensor* const tensor = input(index, name, 0);
    return good() ? *static_cast<const std::int32_t*>(TF_TensorData(tensor)) : 0;
  }

  template <typename T>
  Matrix<T> output(std::size_t rows, std::size_t columns) {
    if (!good()) return {};
    const std::int64_t shape[] = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
    constexpr TF_DataType type = std::is_same_v<T, float> ? TF_FLOAT : TF_INT32;
    kept_.emplace_back(TF_AllocateOutput(context_, 0, type, shape, 2, rows * columns * sizeof(T), status_.get()));
    if (!good()) return {};
    return {static_cast<T*>(TF_TensorData(kept_.back().get())), rows, columns};
  }

 private:
  TF_Tensor* input(int index, const std::string& name, int rank) {
    if (!good()) return nullptr;
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, index, &tensor, status_.get());
    if (!good()) return nullptr;
    kept_.emplace_back(tensor);
    const int has = TF_NumDims(tensor);
    require(has == rank, name + " has rank " + std::to_string(has) + "; it must have " + std::to_string(rank) + ".");
    return tensor;
  }

  TF_OpKernelContext* const context_;
  const Status status_{TF_NewStatus()};
  std::vector<Tensor> kept_;
};

// Calls part(row, begin, end) for parts of all rows, multiples of `unit` numbers long, in several threads.
void for_parts(std::size_t rows, std::size_t columns, std::size_t unit,
               const std::function<void(std::size_t, std::size_t, std::size_t)>& part) {
  if (rows == 0 || columns == 0) return;
  const std::size_t length = (kPart + unit - 1) / unit * unit, parts = (columns + length - 1) / length;
  collectives::helpers_of_process().run(rows * parts, [&](std::size_t number) {
    const NoDenormals floats;
    const std::size_t begin = number % parts * length;
    part(number / parts, begin, std::min(begin + length, columns));
  });
}

void sums(const Attributes& op, Call& call) {
  const auto group = static_cast<std::size_t>(op.group);
  const auto rows = call.groups(0, group);
  call.require(op.of >= 0 && op.of <= static_cast<std::int64_t>(Of::kPositives), "of is none that can be added up.");
  if (!call.good()) return;
  const auto into = call.output<float>(rows.rows, rows.columns / group);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, group, [&](std::size_t row, std::size_t begin, std::size_t end) {
    group_sums(rows.row(row) + begin, end - begin, group, static_cast<Of>(op.of), into.row(row) + begin / group);
  });
}

void largest_sizes(const Attributes& op, Call& call) {
  const auto group = static_cast<std::size_t>(op.group);
  const auto rows = call.groups(0, group);
  if (!call.good()) return;
  const auto into = call.output<float>(rows.rows, rows.columns / group);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, group, [&](std::size_t row, std::size_t begin, std::size_t end) {
    group_largest(rows.row(row) + begin, end - begin, group, into.row(row) + begin / group);
  });
}

bool is_width(std::int64_t bits) { return bits == 2 || bits == 4 || bits == 8; }

void encode_levels(const Attributes& op, Call& call) {
  const auto group = static_cast<std::size_t>(op.group);
  const auto rows = call.groups(0, group);
  call.require(is_width(op.bits), "bits is " + std::to_string(op.bits) + "; it must be 2, 4 or 8.");
  if (!call.good()) return;
  const auto scales = call.of_groups(1, "scales", rows.rows, rows.columns / group);
  const Philox random = call.random(2, 3);
  const auto bits = static_cast<std::size_t>(op.bits);
  const auto words = call.output<std::uint32_t>(rows.rows, rows.columns / kBlock * bits);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, group, [&](std::size_t row, std::size_t begin, std::size_t end) {
    to_levels(static_cast<int>(bits), rows.row(row) + begin, end - begin, group, scales.row(row) + begin / group, random,
              row * rows.columns + begin, words.row(row) + begin / kBlock * bits);
  });
}

void decode_levels(const Attributes& op, Call& call) {
  const auto words = call.matrix<std::uint32_t>(0, "words");
  call.require(is_width(op.bits), "bits is " + std::to_string(op.bits) + "; it must be 2, 4 or 8.");
  call.require(op.group > 0 && op.group % kBlock == 0, "group must be a multiple of 32.");
  if (!call.good()) return;
  const auto group = static_cast<std::size_t>(op.group), bits = static_cast<std::size_t>(op.bits);
  const std::size_t each = group / kBlock * bits;  // words of a group
  call.require(words.columns % each == 0, "words are no whole groups.");
  const auto scales = call.of_groups(1, "scales", words.rows, words.columns / each);
  const auto rows = call.output<float>(words.rows, words.columns / each * group);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, group, [&](std::size_t row, std::size_t begin, std::size_t end) {
    from_levels(static_cast<int>(bits), words.row(row) + begin / kBlock * bits, end - begin, group,
                scales.row(row) + begin / group, rows.row(row) + begin);
  });
}

void encode_signs(const Attributes&, Call& call) {
  const auto rows = call.groups(0, kBlock);
  if (!call.good()) return;
  const auto words = call.output<std::uint32_t>(rows.rows, rows.columns / kBlock);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, kBlock, [&](std::size_t row, std::size_t begin, std::size_t end) {
    to_signs(rows.row(row) + begin, end - begin, words.row(row) + begin / kBlock);
  });
}

void decode_signs(const Attributes& op, Call& call) {
  const auto words = call.matrix<std::uint32_t>(0, "words");
  call.require(op.group > 0 && op.group % kBlock == 0, "group must be a multiple of 32.");
  if (!call.good()) return;
  const auto group = static_cast<std::size_t>(op.group);
  call.require(words.columns % (group / kBlock) == 0, "words are no whole groups.");
  const std::size_t groups = words.columns / (group / kBlock);
  const auto low = call.of_groups(1, "low", words.rows, groups);
  const auto high = call.of_groups(2, "high", words.rows, groups);
  const auto rows = call.output<float>(words.rows, words.columns * kBlock);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, group, [&](std::size_t row, std::size_t begin, std::size_t end) {
    from_signs(words.row(row) + begin / kBlock, end - begin, group, low.row(row) + begin / group,
               high.row(row) + begin / group, rows.row(row) + begin);
  });
}

void encode_powers(const Attributes&, Call& call) {
  const auto rows = call.groups(0, kBlock);
  const Philox random = call.random(1, 2);
  if (!call.good()) return;
  const auto words = call.output<std::uint32_t>(rows.rows, rows.columns / 4 + rows.columns / kBlock);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, kBlock, [&](std::size_t row, std::size_t begin, std::size_t end) {
    to_powers(rows.row(row) + begin, end - begin, random, row * rows.columns + begin, words.row(row) + begin / 4,
              words.row(row) + rows.columns / 4 + begin / kBlock);
  });
}

void decode_powers(const Attributes&, Call& call) {
  constexpr std::size_t kEach = kBlock / 4 + 1;
  const auto words = call.matrix<std::uint32_t>(0, "words");
  call.require(call.good() && words.columns % kEach == 0, "words are no exponents and signs.");
  if (!call.good()) return;
  const auto rows = call.output<float>(words.rows, words.columns / kEach * kBlock);
  if (!call.good()) return;
  for_parts(rows.rows, rows.columns, kBlock, [&](std::size_t row, std::size_t begin, std::size_t end) {
    from_powers(words.row(row) + begin / 4, words.row(row) + rows.columns / 4 + begin / kBlock, end - begin,
                rows.row(row) + begin);
  });
}

void largest_numbers(const Attributes&, Call& call) {
  const auto rows = call.matrix<float>(0, "rows");
  const std::int32_t k = call.scalar(1, "k");
  if (!call.good()) return;
  call.require(k >= 0 && static_cast<std::size_t>(k) <= rows.columns,
               "k is " + std::to_string(k) + "; rows have " + std::to_string(rows.columns) + " numbers.");
  call.require(rows.columns <= static_cast<std::size_t>(INT32_MAX), "rows have too many numbers; split them.");
  const auto places = call.output<std::int32_t>(rows.rows, static_cast<std::size_t>(k));
  if (!call.good() || k == 0) return;
  collectives::helpers_of_process().run(rows.rows, [&](std::size_t row) {
    largest(rows.row(row), rows.columns, static_cast<std::size_t>(k), places.row(row));
  });
}

template <void (*run)(const Attributes&, Call&)>
void compute(void* attributes, TF_OpKernelContext* context) {
  Call call(context);
  run(*static_cast<Attributes*>(attributes), call);
}

// Where the op is called its shape is set, which follows from attributes, and those cannot be read here.
void unknown_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

struct Definition {
  const char* name;
  std::vector<const char*> inputs;
  const char* output;
  std::vector<const char*> attributes;
  void (*compute)(void*, TF_OpKernelContext*);
};

// What cannot be registered is missing when the library is loaded, and is reported there.
bool register_op(const Definition& op) {
  const Status status(TF_NewStatus());
  TF_OpDefinitionBuilder* definition = TF_NewOpDefinitionBuilder(op.name);
  for (const char* input : op.inputs) TF_OpDefinitionBuilderAddInput(definition, input);
  TF_OpDefinitionBuilderAddOutput(definition, op.output);
  for (const char* attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(definition, attribute);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, unknown_shape);
  TF_RegisterOpDefinition(definition, status.get());
  if (TF_GetCode(status.get()) != TF_OK) return false;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(op.name, "CPU", new_kernel, op.compute, delete_kernel);
  TF_RegisterKernelBuilder(op.name, kernel, status.get());
  return TF_GetCode(status.get()) == TF_OK;
}

[[maybe_unused]] const bool registered[] = {
    register_op({"TfdistGroupSums", {"rows: float"}, "sums: float", {"group: int", "of: int"}, compute<sums>}),
    register_op({"TfdistGroupLargest", {"rows: float"}, "largest: float", {"group: int"}, compute<largest_sizes>}),
    register_op({"TfdistToLevels",
                 {"rows: float", "scales: float", "key: uint64", "counter: uint64"},
                 "words: int32",
                 {"group: int", "bits: int"},
                 compute<encode_levels>}),
    register_op({"TfdistFromLevels",
                 {"words: int32", "scales: float"},
                 "rows: float",
                 {"group: int", "bits: int"},
                 compute<decode_levels>}),
    register_op({"TfdistToSigns", {"rows: float"}, "words: int32", {}, compute<encode_signs>}),
    register_op({"TfdistFromSigns",
                 {"words: int32", "low: float", "high: float"},
                 "rows: float",
                 {"group: int"},
                 compute<decode_signs>}),
    register_op({"TfdistToPowers",
                 {"rows: float", "key: uint64", "counter: uint64"},
                 "words: int32",
                 {},
                 compute<encode_powers>}),
    register_op({"TfdistFromPowers", {"words: int32"}, "rows: float", {}, compute<decode_powers>}),
    register_op({"TfdistLargest", {"rows: float", "k: int32"}, "places: int32", {}, compute<largest_numbers>}),
};

}  // namespace
}  // namespace tfdist::codecs

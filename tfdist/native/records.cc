// TensorFlow ops that read records of TFRecord files at known places, checked, out of memory maps.
//
// They are written against TensorFlow's C interface: it is the same in every version, needs no headers of templates,
// and compiles in a second. tfdist/data/examples/numpy_reader.py reads the same in NumPy, and says what is promised; example.h says
// what is parsed.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "crc32c.h"
#include "example.h"
#include "handles.h"
#include "maps.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"
#include "tensorflow/core/platform/ctstring.h"

namespace tfdist {
namespace {

constexpr uint64_t kHeader = 12;   // uint64 length of the payload, uint32 masked CRC of these eight bytes
constexpr uint64_t kFraming = 16;  // the header, and uint32 masked CRC of the payload behind it

// The frame of a record in its file: the bytes before the payload, and all bytes besides the payload. Files of other
// libraries have no frames, so nothing can check their bytes.
struct Frame {
  uint64_t header, all;
};
constexpr Frame kFramed{kHeader, kFraming};
constexpr Frame kBare{0, 0};

// Rows longer than their files are all zeros; more of them than this are an error rather than memory.
constexpr uint64_t kMostZeros = uint64_t{1} << 30;

// Records are far apart in memory. The first byte of each record of a group is loaded before the group is read, so that
// the processor waits for several records and pages at a time; it may drop a prefetch from a page that it does not know.
constexpr int64_t kGroup = 16;
constexpr uint64_t kLine = 64;
constexpr uint64_t kMostLines = 4;  // the processor recognises the rest of a longer record by itself

bool Ok(const Status& status) { return TF_GetCode(status.get()) == TF_OK; }

void Fail(const Status& status, TF_Code code, const std::string& message) {
  TF_SetStatus(status.get(), code, message.c_str());
}

void FailWithErrno(const Status& status, int error, const std::string& path) {
  if (error == EINVAL) {
    Fail(status, TF_INVALID_ARGUMENT, path + " is not a regular file; records are read from one.");
    return;
  }
  const TF_Code code = error == ENOENT || error == ENOTDIR   ? TF_NOT_FOUND
                       : error == EACCES || error == EPERM   ? TF_PERMISSION_DENIED
                       : error == ENOMEM || error == EMFILE  ? TF_RESOURCE_EXHAUSTED
                                                             : TF_UNKNOWN;
  Fail(status, code, path + " cannot be opened (" + std::strerror(error) + ").");
}

// The input of an op, a vector; `status` says if it is none.
template <typename T>
class Vector {
 public:
  Vector(TF_OpKernelContext* context, int index, const char* name, const Status& status) {
    if (!Ok(status)) return;
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context, index, &tensor, status.get());
    tensor_.reset(tensor);
    if (!Ok(status)) return;
    if (TF_NumDims(tensor) != 1) {
      const std::string rank = std::to_string(TF_NumDims(tensor));
      Fail(status, TF_INVALID_ARGUMENT, std::string(name) + " has rank " + rank + "; it must be a vector.");
      return;
    }
    data_ = static_cast<const T*>(TF_TensorData(tensor));
    size_ = TF_Dim(tensor, 0);
  }

  int64_t size() const { return size_; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  Tensor tensor_;
  const T* data_ = nullptr;
  int64_t size_ = 0;
};

void RequireSize(int64_t received, int64_t required, const char* name, const Status& status) {
  if (!Ok(status) || received == required) return;
  Fail(status, TF_INVALID_ARGUMENT,
       std::string(name) + " has " + std::to_string(received) + " values, and file has " + std::to_string(required) +
           "; each must have one per record.");
}

// The maps of the files that a call reads, by their numbers. A file that is not in the state in which it must be (four
// numbers of each file, or none at all) is as good as empty: none of its records is ok.
class CallMaps {
 public:
  CallMaps(KeptMaps& kept, const Vector<TF_TString>& files, const Vector<int32_t>& file, const Vector<int64_t>& state,
           const Status& status) {
    if (!Ok(status)) return;
    const bool any = state.size() == 0;
    if (!any && state.size() != kStateNumbers * files.size()) {
      Fail(status, TF_INVALID_ARGUMENT,
           "state has " + std::to_string(state.size()) + " values, and there are " + std::to_string(files.size()) +
               " files; each has four, or none has.");
      return;
    }
    maps_.resize(files.size());
    for (int64_t i = 0; i < file.size(); ++i) {
      const int32_t number = file[i];
      if (number < 0 || number >= files.size()) {
        Fail(status, TF_INVALID_ARGUMENT,
             "file[" + std::to_string(i) + "] is " + std::to_string(number) + "; there are " +
                 std::to_string(files.size()) + " files.");
        return;
      }
      if (maps_[number] != nullptr) continue;
      const std::string path(TF_TString_GetDataPointer(&files[number]), TF_TString_GetSize(&files[number]));
      int error = path.find('\0') == std::string::npos ? 0 : ENOENT;  // the system would read up to there
      if (error == 0) maps_[number] = kept.Get(path, &error);
      if (!any && (maps_[number] == nullptr || !IsInState(*maps_[number], &state[kStateNumbers * number]))) {
        maps_[number] = Nothing();
      }
      if (maps_[number] == nullptr) {
        FailWithErrno(status, error, path);
        return;
      }
      largest_ = std::max(largest_, maps_[number]->size());
    }
  }

  const FileMap& operator[](int32_t number) const { return *maps_[number]; }
  uint64_t largest() const { return largest_; }

 private:
  static constexpr int64_t kStateNumbers = 4;  // device, inode, size, time of change in ns

  static bool IsInState(const FileMap& map, const int64_t* state) {
    const auto& [device, inode, size, seconds, nanoseconds] = map.identity();
    const uint64_t time = static_cast<uint64_t>(seconds) * 1000000000u + static_cast<uint64_t>(nanoseconds);
    return static_cast<uint64_t>(device) == static_cast<uint64_t>(state[0]) &&
           static_cast<uint64_t>(inode) == static_cast<uint64_t>(state[1]) &&
           static_cast<uint64_t>(size) == static_cast<uint64_t>(state[2]) && time == static_cast<uint64_t>(state[3]);
  }

  static const SharedMap& Nothing() {
    static const auto* nothing = new SharedMap(std::make_shared<const FileMap>(nullptr, 0, Identity()));
    return *nothing;
  }

  std::vector<SharedMap> maps_;
  uint64_t largest_ = 0;
};

bool Lies(const FileMap& map, int64_t offset, int64_t length, const Frame& frame) {
  if (offset < 0 || length < 0 || map.size() < frame.all) return false;
  const uint64_t room = map.size() - frame.all;  // differences instead of sums: nothing here can overflow
  return static_cast<uint64_t>(length) <= room && static_cast<uint64_t>(offset) <= room - static_cast<uint64_t>(length);
}

bool HeaderFits(const uint8_t* record, int64_t length) {
  return Load<uint64_t>(record) == static_cast<uint64_t>(length) &&
         Load<uint32_t>(record + 8) == MaskedCrc32c(record, 8);
}

// Copies the whole payload of a record inside the map; returns whether it is sound.
bool CopyWhole(uint8_t* to, const uint8_t* record, int64_t length, bool check, const Frame& frame) {
  const uint8_t* payload = record + frame.header;
  if (!check || frame.all == 0) {
    std::memcpy(to, payload, length);
    return true;
  }
  return HeaderFits(record, length) && CopyWithMaskedCrc32c(to, payload, length) == Load<uint32_t>(payload + length);
}

bool CopyPart(uint8_t* to, const uint8_t* record, int64_t length, int64_t start, int64_t size, bool check,
              const Frame& frame) {
  if (start == 0 && size == length) return CopyWhole(to, record, length, check, frame);
  const uint8_t* payload = record + frame.header;
  if (check && frame.all > 0 && !(HeaderFits(record, length) && MaskedCrc32c(payload, length) == Load<uint32_t>(payload + length))) {
    return false;
  }
  std::memcpy(to, payload + start, size);
  return true;
}

// Loads the first lines of a record.
void Touch(const FileMap& map, int64_t offset, int64_t length, const Frame& frame) {
  if (!Lies(map, offset, length, frame)) return;
  const uint64_t size = std::min<uint64_t>(static_cast<uint64_t>(length) + frame.all, kMostLines * kLine);
  if (size == 0) return;
  const uint8_t* record = map.data() + offset;
  static_cast<void>(*static_cast<const volatile uint8_t*>(record));
  for (uint64_t at = kLine; at < size; at += kLine) __builtin_prefetch(record + at);
  __builtin_prefetch(record + size - 1);  // records do not begin where lines do
}

struct Kernel {
  KeptMaps maps;
  int64_t length = 0;  // of a row
  Frame frame = kFramed;
};

void* NewKernel(TF_OpKernelConstruction*) { return new Kernel; }

void SetFrame(Kernel& kernel, TF_OpKernelConstruction* construction, const Status& status) {
  TF_Bool framed = 1;
  TF_OpKernelConstruction_GetAttrBool(construction, "framed", &framed, status.get());
  kernel.frame = framed ? kFramed : kBare;
  if (!Ok(status)) TF_OpKernelConstruction_Failure(construction, status.get());
}

void* NewRecordsKernel(TF_OpKernelConstruction* construction) {
  const Status status(TF_NewStatus());
  auto kernel = std::make_unique<Kernel>();
  SetFrame(*kernel, construction, status);
  return kernel.release();
}

void* NewRowsKernel(TF_OpKernelConstruction* construction) {
  const Status status(TF_NewStatus());
  auto kernel = std::make_unique<Kernel>();
  TF_OpKernelConstruction_GetAttrInt64(construction, "length", &kernel->length, status.get());
  if (Ok(status)) {
    SetFrame(*kernel, construction, status);
  } else {
    TF_OpKernelConstruction_Failure(construction, status.get());
  }
  return kernel.release();
}

void DeleteKernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

Tensor Output(TF_OpKernelContext* context, int index, TF_DataType type, std::vector<int64_t> shape, size_t width,
              const Status& status) {
  size_t bytes = width;
  for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  const int rank = static_cast<int>(shape.size());
  return Tensor(TF_AllocateOutput(context, index, type, shape.data(), rank, bytes, status.get()));
}

void ReadRecords(Kernel& kernel, TF_OpKernelContext* context, const Status& status) {
  const Vector<TF_TString> files(context, 0, "files", status);
  const Vector<int32_t> file(context, 1, "file", status);
  const Vector<int64_t> offset(context, 2, "offset", status);
  const Vector<int64_t> length(context, 3, "length", status);
  const Vector<int64_t> start(context, 4, "start", status);
  const Vector<int64_t> size(context, 5, "size", status);
  const Vector<bool> check(context, 6, "check", status);
  const Vector<int64_t> state(context, 7, "state", status);
  const int64_t n = file.size();
  RequireSize(offset.size(), n, "offset", status);
  RequireSize(length.size(), n, "length", status);
  RequireSize(start.size(), n, "start", status);
  RequireSize(size.size(), n, "size", status);
  RequireSize(check.size(), n, "check", status);
  const CallMaps maps(kernel.maps, files, file, state, status);
  if (!Ok(status)) return;
  const Tensor payloads = Output(context, 0, TF_STRING, {n}, sizeof(TF_TString), status);
  if (!Ok(status)) return;
  const Tensor oks = Output(context, 1, TF_BOOL, {n}, sizeof(bool), status);
  if (!Ok(status) || n == 0) return;
  auto* payload = static_cast<TF_TString*>(TF_TensorData(payloads.get()));
  auto* ok = static_cast<bool*>(TF_TensorData(oks.get()));
  for (int64_t i = 0; i < n; ++i) {
    if (i % kGroup == 0) {
      for (int64_t j = i; j < std::min(n, i + kGroup); ++j) Touch(maps[file[j]], offset[j], length[j], kernel.frame);
    }
    const FileMap& map = maps[file[i]];
    ok[i] = start[i] >= 0 && size[i] >= 0 && start[i] <= length[i] && size[i] <= length[i] - start[i] &&
            Lies(map, offset[i], length[i], kernel.frame);
    if (!ok[i]) continue;
    auto* to = reinterpret_cast<uint8_t*>(TF_TString_ResizeUninitialized(&payload[i], size[i]));
    ok[i] = CopyPart(to, map.data() + offset[i], length[i], start[i], size[i], check[i], kernel.frame);
    if (!ok[i]) TF_TString_ResizeUninitialized(&payload[i], 0);
  }
}

void ReadRows(Kernel& kernel, TF_OpKernelContext* context, const Status& status) {
  const Vector<TF_TString> files(context, 0, "files", status);
  const Vector<int32_t> file(context, 1, "file", status);
  const Vector<int64_t> offset(context, 2, "offset", status);
  const Vector<bool> check(context, 3, "check", status);
  const Vector<int64_t> state(context, 4, "state", status);
  const int64_t n = file.size(), length = kernel.length;
  RequireSize(offset.size(), n, "offset", status);
  RequireSize(check.size(), n, "check", status);
  const CallMaps maps(kernel.maps, files, file, state, status);
  if (!Ok(status)) return;
  if (n > 0 && static_cast<uint64_t>(length) > maps.largest() &&
      static_cast<uint64_t>(length) > kMostZeros / static_cast<uint64_t>(n)) {
    return Fail(status, TF_INVALID_ARGUMENT,
                "length is " + std::to_string(length) + " bytes, and the largest file has " +
                    std::to_string(maps.largest()) + "; a row must fit into a file.");
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(n, length, &bytes)) {
    return Fail(status, TF_INVALID_ARGUMENT, "the rows have more bytes than can be counted; ask for fewer.");
  }
  const Tensor rows = Output(context, 0, TF_UINT8, {n, length}, sizeof(uint8_t), status);
  if (!Ok(status)) return;
  const Tensor oks = Output(context, 1, TF_BOOL, {n}, sizeof(bool), status);
  if (!Ok(status) || n == 0) return;
  uint8_t nowhere;  // a tensor without elements has no memory
  auto* row = length > 0 ? static_cast<uint8_t*>(TF_TensorData(rows.get())) : &nowhere;
  auto* ok = static_cast<bool*>(TF_TensorData(oks.get()));
  for (int64_t i = 0; i < n; ++i, row += length) {
    if (i % kGroup == 0) {
      for (int64_t j = i; j < std::min(n, i + kGroup); ++j) Touch(maps[file[j]], offset[j], length, kernel.frame);
    }
    const FileMap& map = maps[file[i]];
    ok[i] = Lies(map, offset[i], length, kernel.frame) &&
            CopyWhole(row, map.data() + offset[i], length, check[i], kernel.frame);
    if (!ok[i]) std::memset(row, 0, length);
  }
}

// The requested features, one after another in the rows of their kinds.
struct Layout {
  std::vector<Wanted> wanted;
  int64_t floats = 0, integers = 0, bytes = 0;  // in a row

  Layout(const Vector<TF_TString>& key, const Vector<int32_t>& tag, const Vector<int64_t>& count,
         const Status& status) {
    for (int64_t i = 0; Ok(status) && i < key.size(); ++i) {
      int64_t* width = tag[i] == kFloats ? &floats : tag[i] == kIntegers ? &integers : &bytes;
      if (count[i] < 0 || (width == &bytes && tag[i] != kBytes) || __builtin_add_overflow(*width, count[i], width)) {
        Fail(status, TF_INVALID_ARGUMENT, "tag or count is none that a feature can have.");
        return;
      }
      const std::string_view name(TF_TString_GetDataPointer(&key[i]), TF_TString_GetSize(&key[i]));
      wanted.push_back({name, static_cast<uint8_t>(tag[i]), count[i], *width - count[i]});
    }
  }

  // The bytes that an example of these features has at least.
  bool LeastBytes(int64_t* least) const {
    return !__builtin_mul_overflow(floats, int64_t{sizeof(float)}, least) &&
           !__builtin_add_overflow(*least, integers, least) && !__builtin_add_overflow(*least, bytes, least);
  }
};

void ParseRecords(Kernel& kernel, TF_OpKernelContext* context, const Status& status) {
  const Vector<TF_TString> files(context, 0, "files", status);
  const Vector<int32_t> file(context, 1, "file", status);
  const Vector<int64_t> offset(context, 2, "offset", status);
  const Vector<int64_t> length(context, 3, "length", status);
  const Vector<bool> check(context, 4, "check", status);
  const Vector<TF_TString> key(context, 5, "key", status);
  const Vector<int32_t> tag(context, 6, "tag", status);
  const Vector<int64_t> count(context, 7, "count", status);
  const Vector<int64_t> state(context, 8, "state", status);
  const int64_t n = file.size();
  RequireSize(offset.size(), n, "offset", status);
  RequireSize(length.size(), n, "length", status);
  RequireSize(check.size(), n, "check", status);
  if (Ok(status) && (tag.size() != key.size() || count.size() != key.size())) {
    return Fail(status, TF_INVALID_ARGUMENT, "key, tag and count have different sizes.");
  }
  const CallMaps maps(kernel.maps, files, file, state, status);
  const Layout layout(key, tag, count, status);
  if (!Ok(status)) return;
  int64_t least = 0;
  if (!layout.LeastBytes(&least) || (n > 0 && static_cast<uint64_t>(least) > maps.largest() &&
                                     static_cast<uint64_t>(least) > kMostZeros / static_cast<uint64_t>(n))) {
    return Fail(status, TF_INVALID_ARGUMENT, "the features are larger than any file; an example must fit into one.");
  }
  const Tensor floats = Output(context, 0, TF_FLOAT, {n, layout.floats}, sizeof(float), status);
  if (!Ok(status)) return;
  const Tensor integers = Output(context, 1, TF_INT64, {n, layout.integers}, sizeof(int64_t), status);
  if (!Ok(status)) return;
  const Tensor bytes = Output(context, 2, TF_UINT8, {n, layout.bytes}, sizeof(uint8_t), status);
  if (!Ok(status)) return;
  const Tensor oks = Output(context, 3, TF_BOOL, {n}, sizeof(bool), status);
  if (!Ok(status) || n == 0) return;
  auto* ok = static_cast<bool*>(TF_TensorData(oks.get()));
  Row row{static_cast<float*>(TF_TensorData(floats.get())), static_cast<int64_t*>(TF_TensorData(integers.get())),
          static_cast<uint8_t*>(TF_TensorData(bytes.get()))};
  Parser parse(layout.wanted);
  std::vector<uint8_t> payload;  // a copy: what was checked is what is parsed, whatever becomes of the file meanwhile
  for (int64_t i = 0; i < n; ++i) {
    if (i % kGroup == 0) {
      for (int64_t j = i; j < std::min(n, i + kGroup); ++j) Touch(maps[file[j]], offset[j], length[j], kFramed);
    }
    const FileMap& map = maps[file[i]];
    ok[i] = Lies(map, offset[i], length[i], kFramed);
    if (ok[i]) {
      payload.resize(std::max(payload.size(), static_cast<size_t>(length[i])));
      ok[i] = CopyWhole(payload.data(), map.data() + offset[i], length[i], check[i], kFramed) &&
              parse(payload.data(), static_cast<size_t>(length[i]), row);
    }
    if (!ok[i]) {
      std::fill_n(row.floats, layout.floats, 0.0f);
      std::fill_n(row.integers, layout.integers, 0);
      std::fill_n(row.bytes, layout.bytes, 0);
    }
    row.floats += layout.floats;
    row.integers += layout.integers;
    row.bytes += layout.bytes;
  }
}

template <void (*Read)(Kernel&, TF_OpKernelContext*, const Status&)>
void Compute(void* kernel, TF_OpKernelContext* context) {
  const Status status(TF_NewStatus());
  Read(*static_cast<Kernel*>(kernel), context, status);
  if (!Ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

// Outputs are as long as the vector of file numbers. The C interface cannot read `length` here: the width of rows is
// set where the op is called.
void OneForEach(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 1, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextWithRank(context, shape, 1, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 1, shape, status);
  TF_DeleteShapeHandle(shape);
}

void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

struct Op {
  const char* name;
  std::vector<const char*> inputs, outputs, attrs;
  void (*shape)(TF_ShapeInferenceContext*, TF_Status*);
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
};

// What cannot be registered is missing when the library is loaded, and is reported there.
bool Register(const Op& op) {
  const Status status(TF_NewStatus());
  TF_OpDefinitionBuilder* definition = TF_NewOpDefinitionBuilder(op.name);
  for (const char* input : op.inputs) TF_OpDefinitionBuilderAddInput(definition, input);
  for (const char* output : op.outputs) TF_OpDefinitionBuilderAddOutput(definition, output);
  for (const char* attr : op.attrs) TF_OpDefinitionBuilderAddAttr(definition, attr);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, op.shape);
  TF_RegisterOpDefinition(definition, status.get());
  if (!Ok(status)) return false;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(op.name, "CPU", op.create, op.compute, DeleteKernel);
  TF_RegisterKernelBuilder(op.name, kernel, status.get());
  return Ok(status);
}

[[maybe_unused]] const bool records_registered = Register({
    "TfdistReadRecords",
    {"files: string", "file: int32", "offset: int64", "length: int64", "start: int64", "size: int64", "check: bool",
     "state: int64"},
    {"payload: string", "ok: bool"},
    {"framed: bool = true"},
    OneForEach,
    NewRecordsKernel,
    Compute<ReadRecords>,
});

[[maybe_unused]] const bool rows_registered = Register({
    "TfdistReadRows",
    {"files: string", "file: int32", "offset: int64", "check: bool", "state: int64"},
    {"rows: uint8", "ok: bool"},
    {"length: int >= 0", "framed: bool = true"},
    UnknownShapes,
    NewRowsKernel,
    Compute<ReadRows>,
});

[[maybe_unused]] const bool parse_registered = Register({
    "TfdistParseRecords",
    {"files: string", "file: int32", "offset: int64", "length: int64", "check: bool", "key: string", "tag: int32",
     "count: int64", "state: int64"},
    {"floats: float", "integers: int64", "bytes: uint8", "ok: bool"},
    {},
    UnknownShapes,
    NewKernel,
    Compute<ParseRecords>,
});

}  // namespace
}  // namespace tfdist

// For `tfdist.native`, which calls them by name.
extern "C" {

__attribute__((visibility("default"))) void tfdist_unmap() { tfdist::KeptMaps::ClearAll(); }

__attribute__((visibility("default"))) int64_t tfdist_mapped() { return tfdist::MapTable::Get().Count(); }

__attribute__((visibility("default"))) uint32_t tfdist_masked_crc(const uint8_t* data, size_t size) {
  return tfdist::MaskedCrc32c(data, size);
}
}

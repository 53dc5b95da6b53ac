// Answers for TensorFlow which kernels an operation of oneDNN has, from memory.
//
// oneDNN's rewriting of graphs asks that for each operation and dtype that a process meets, a hundred times in a short
// training, and TensorFlow goes through all of its 15,000 kernels each time. This library is loaded before TensorFlow,
// whose own calls then lead here; tests/integration/without_searches.py has it remember what forks would ask.
//
// It also answers which operations XLA has: none. For each function that a process runs, TensorFlow copies and sorts
// all of their names to check those that TF_XLA_FLAGS lists, of which there are none.

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

constexpr char kName[] = "_ZN10tensorflow22KernelsRegisteredForOpB5cxx11ESt17basic_string_viewIcSt11char_traitsIcEE";

std::string AskTensorFlow(std::string_view operation) {
  static auto* const tensorflow = [] {
    void* library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
    void* found = library == nullptr ? nullptr : dlsym(library, kName);
    if (found == nullptr) std::abort();  // only TensorFlow calls this
    return reinterpret_cast<std::string (*)(std::string_view)>(found);
  }();
  return tensorflow(operation);
}

struct Memory {
  std::mutex lock;
  std::unordered_map<std::string, std::string> kernels;
  std::string none;  // the answer for an operation without kernels; empty until all others are remembered
  std::size_t asked = 0, searched = 0, listed = 0;
};

Memory& Remembered() {
  static auto* const memory = new Memory;
  return *memory;
}

}  // namespace

namespace tensorflow {

__attribute__((visibility("default"))) std::string KernelsRegisteredForOp(std::string_view operation) {
  Memory& memory = Remembered();
  const std::lock_guard<std::mutex> held(memory.lock);
  ++memory.asked;
  if (operation.substr(0, 4) == "_Mkl" && !memory.none.empty()) {
    const auto found = memory.kernels.find(std::string(operation));
    return found == memory.kernels.end() ? memory.none : found->second;
  }
  ++memory.searched;
  return AskTensorFlow(operation);
}

struct XlaOpRegistry {
  __attribute__((visibility("default"))) static std::vector<std::string> GetAllRegisteredOps();
};

std::vector<std::string> XlaOpRegistry::GetAllRegisteredOps() {
  Memory& memory = Remembered();
  const std::lock_guard<std::mutex> held(memory.lock);
  ++memory.listed;
  return {};
}

}  // namespace tensorflow

extern "C" {

// Remember the kernels of operations of oneDNN: their names, and a null pointer. Others of oneDNN have none.
__attribute__((visibility("default"))) void remember_kernels(const char* const* operations) {
  Memory& memory = Remembered();
  const std::lock_guard<std::mutex> held(memory.lock);
  for (; *operations != nullptr; ++operations) memory.kernels.emplace(*operations, AskTensorFlow(*operations));
  memory.none = AskTensorFlow("_MklOperationThatDoesNotExist");
}

__attribute__((visibility("default"))) std::size_t times_kernels_were_asked_for() { return Remembered().asked; }

__attribute__((visibility("default"))) std::size_t times_kernels_were_searched() { return Remembered().searched; }

__attribute__((visibility("default"))) std::size_t times_operations_were_listed() { return Remembered().listed; }
}

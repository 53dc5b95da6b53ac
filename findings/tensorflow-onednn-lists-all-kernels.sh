#!/usr/bin/env bash
# Finding: with oneDNN, TensorFlow makes lists of its kernels some eighty times in a training of two steps.
#
# Versions: TensorFlow 2.21.0, Keras 3.15.1, Python 3.11, x86-64 Linux.
# Behaviour: oneDNN's rewriting of graphs asks whether an operation has a kernel of oneDNN. It asks by
# KernelsRegisteredForOp, which makes text for error messages: it goes through all registered kernels (some 15,000)
# and formats those that fit. A process asks anew for each operation and dtype that it meets. Only a new process pays,
# so it does not show in a long training, but it does in the first step of each of many short processes. With
# TF_ENABLE_ONEDNN_OPTS=0 nothing is asked. oneDNN is on by default and known as a gain in speed.
# Output seen: with oneDNN: 81 lists in 0.07 s; without: 0 (0.24 s on a busy machine)
# The script fails if that changes; the numbers may differ, and the time is not looked at.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cat > "$folder/counting.cc" <<'PROGRAM'
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

static std::atomic<long> calls{0}, nanoseconds{0};
extern "C" long lists() { return calls; }
extern "C" long nanoseconds_in_lists() { return nanoseconds; }

namespace tensorflow {
std::string KernelsRegisteredForOp(std::string_view operation) {
  static auto* const original = [] {
    void* library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
    const char* name = "_ZN10tensorflow22KernelsRegisteredForOpB5cxx11ESt17basic_string_viewIcSt11char_traitsIcEE";
    void* found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr) std::abort();
    return reinterpret_cast<std::string (*)(std::string_view)>(found);
  }();
  const auto begun = std::chrono::steady_clock::now();
  std::string found = original(operation);
  nanoseconds += (std::chrono::steady_clock::now() - begun).count();
  ++calls;
  return found;
}
}  // namespace tensorflow
PROGRAM
g++ -std=c++17 -O2 -shared -fPIC "$folder/counting.cc" -o "$folder/counting.so" -ldl
cat > "$folder/training.py" <<'PROGRAM'
import ctypes

import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.zeros((16, 4)), np.zeros((16, 1)), batch_size=8, verbose=0)
counting = ctypes.CDLL(None)
print(counting.lists(), round(counting.nanoseconds_in_lists() / 1e9, 2))
PROGRAM
run() {
  LD_PRELOAD="$folder/counting.so" CUDA_VISIBLE_DEVICES=-1 TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=$1 \
    "$folder/venv/bin/python" "$folder/training.py" 2> "$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
}
read -r with seconds <<< "$(run 1)"
read -r without _ <<< "$(run 0)"
echo "with oneDNN: $with lists in $seconds s; without: $without"
if (( with < 50 || without > 5 )); then
  echo "the behaviour has changed"
  exit 1
fi

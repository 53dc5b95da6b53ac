// Small systems, one for each row of a sparse matrix: (S + sum of w y y') x = sum of t y. The sums run over the entries of
// the row: y are the factors of an entry's column, w is its weight and t its target. S is the same for all rows.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "small_systems.h"

namespace tfdist {
namespace {

constexpr std::int64_t kPacked = 64;  // entries of a row at a time: their factors stay in the L1 cache
constexpr std::int64_t kAhead = 8;    // entries to prefetch ahead: factors of columns are scattered in memory

template <typename T>
struct Problem {
  const T* shared;   // [size, size]
  const T* factors;  // [columns, size]
  const std::int64_t* begins;  // [rows + 1]
  const std::int32_t* columns;
  const T* weights;
  const T* targets;
  std::int64_t rows, width;
  std::size_t size;  // of a row of `shared` and `factors`, a multiple of kTile
  T* into;           // [rows, size]
};

// Fill in the system of a row; return false if the column of an entry has no factors.
template <typename T, std::size_t kBytes>
TFDIST_PART bool fill(const Problem<T>& of, std::int64_t row, T* matrix, T* packed) {
  using Vector = typename Vectors<T, kBytes>::Vector;
  using Unaligned = typename Vectors<T, kBytes>::Unaligned;
  const std::size_t across = of.size / Vectors<T, kBytes>::wide;
  const std::int64_t end = of.begins[row + 1], last = of.begins[of.rows] - 1;
  Vector* right = reinterpret_cast<Vector*>(matrix + of.size * of.size);
  for (std::int64_t begin = of.begins[row]; begin < end; begin += kPacked) {
    const std::int64_t count = std::min(end - begin, kPacked);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t at = begin + n, column = of.columns[at], next = of.columns[std::min(at + kAhead, last)];
      if (column < 0 || column >= of.width) return false;
      const T* ahead = of.factors + next * static_cast<std::int64_t>(of.size);
      for (std::size_t j = 0; j < of.size; j += kTile<T>) __builtin_prefetch(ahead + j);
      const Unaligned* y = reinterpret_cast<const Unaligned*>(of.factors + column * static_cast<std::int64_t>(of.size));
      Vector* scaled = reinterpret_cast<Vector*>(packed) + n * static_cast<std::int64_t>(across);
      const T root = std::sqrt(of.weights[at]), target = of.targets[at];
      for (std::size_t j = 0; j < across; ++j) {
        scaled[j] = root * y[j];
        right[j] += target * y[j];
      }
    }
    add_products<T, kBytes>(matrix, packed, static_cast<std::size_t>(count), of.size);
  }
  return true;
}

// Solve all rows and return their number; otherwise return the first row that cannot be solved.
template <typename T, std::size_t kBytes>
TFDIST_PART std::int64_t solve(const Problem<T>& of, T* systems) {
  const std::size_t numbers = numbers_of_system<T>(of.size), square = of.size * of.size;
  T* packed = systems + kTogether * numbers;
  for (std::int64_t first = 0; first < of.rows; first += kTogether) {
    const std::size_t real = static_cast<std::size_t>(std::min<std::int64_t>(of.rows - first, kTogether));
    bool fine[kTogether];
    for (std::size_t one = 0; one < kTogether; ++one) {
      T* matrix = systems + one * numbers;
      std::memcpy(matrix, of.shared, square * sizeof(T));
      std::fill(matrix + square, matrix + numbers, T{0});
      fine[one] = true;
      if (one < real && !fill<T, kBytes>(of, first + static_cast<std::int64_t>(one), matrix, packed)) {
        return first + static_cast<std::int64_t>(one);
      }
    }
    factorise<T, kBytes>(systems, of.size, fine);
    substitute<T, kBytes>(systems, of.size);
    for (std::size_t one = 0; one < real; ++one) {
      const std::int64_t row = first + static_cast<std::int64_t>(one);
      if (!fine[one]) return row;
      std::memcpy(of.into + row * static_cast<std::int64_t>(of.size), systems + (one + 1) * numbers - of.size,
                  of.size * sizeof(T));
    }
  }
  return of.rows;
}

#if defined(__x86_64__)
template <typename T>
__attribute__((target("avx2,fma"))) std::int64_t solve_avx2(const Problem<T>& of, T* systems) {
  return solve<T, 32>(of, systems);
}
#endif

// Vectors of 16 bytes, which every x86-64 and aarch64 processor has.
template <typename T>
std::int64_t solve_anywhere(const Problem<T>& of, T* systems) {
  return solve<T, 16>(of, systems);
}

template <typename T>
std::int64_t solve_here(const Problem<T>& of, bool portable) {
  const std::size_t numbers = kTogether * numbers_of_system<T>(of.size) + kPacked * of.size;
  T* systems = static_cast<T*>(std::aligned_alloc(kLine, numbers * sizeof(T)));  // of.size fills lines
  if (systems == nullptr) return -1;
  std::int64_t solved;
#if defined(__x86_64__)
  if (!portable && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    solved = solve_avx2<T>(of, systems);
  } else {
    solved = solve_anywhere<T>(of, systems);
  }
#else
  static_cast<void>(portable);
  solved = solve_anywhere<T>(of, systems);
#endif
  std::free(systems);
  return solved;
}

}  // namespace
}  // namespace tfdist

#define TFDIST_EXPORT __attribute__((visibility("default")))
#define TFDIST_SOLVER(NAME, T)                                                                                             \
  TFDIST_EXPORT std::int64_t tfdist_solve_rows_##NAME(                                                                     \
      const T* shared, const T* factors, const std::int64_t* begins, const std::int32_t* columns, const T* weights,        \
      const T* targets, std::int64_t rows, std::int64_t width, std::size_t size, T* into, bool portable) {                 \
    return tfdist::solve_here<T>({shared, factors, begins, columns, weights, targets, rows, width, size, into}, portable); \
  }

extern "C" {
// Return the number of solved rows: all, or those before the first that cannot be solved; -1 if there is no memory.
TFDIST_SOLVER(float32, float)
TFDIST_SOLVER(float64, double)
}

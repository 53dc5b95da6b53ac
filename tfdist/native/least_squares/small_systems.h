// Sums of outer products, and solution of their systems by Cholesky factorisation, in vectors of `kBytes`.
//
// In memory, a system is a symmetric matrix of `size` rows, then its right side, then the solution. Only the diagonal and
// the part above it are read. `size` is a multiple of kTile, so rows consist of whole vectors.

#ifndef TFDIST_NATIVE_LEAST_SQUARES_SMALL_SYSTEMS_H_
#define TFDIST_NATIVE_LEAST_SQUARES_SMALL_SYSTEMS_H_

#include <cmath>
#include <cstddef>

// Functions for one kind of processor must inline the functions that they call, or those are compiled for any kind.
#define TFDIST_PART inline __attribute__((always_inline))

namespace tfdist {

constexpr std::size_t kLine = 64;
// Registers hold the sums of this many rows and two vectors. All processors with AVX2 have 16 vector registers.
constexpr std::size_t kTall = 4;
// This many systems are solved together: while one waits for a square root, the others continue.
constexpr std::size_t kTogether = 4;

// The numbers in two vectors of 32 bytes, the largest.
template <typename T>
constexpr std::size_t kTile = kLine / sizeof(T);

template <typename T, std::size_t kBytes>
struct Vectors {
  typedef T Vector __attribute__((vector_size(kBytes), may_alias));
  typedef T Unaligned __attribute__((vector_size(kBytes), may_alias, aligned(alignof(T))));
  static constexpr std::size_t wide = kBytes / sizeof(T);
  static_assert(2 * wide <= kTile<T>, "a tile is two vectors wide");
};

template <typename T>
TFDIST_PART std::size_t numbers_of_system(std::size_t size) {
  return size * size + 2 * size;
}

// Add the outer product of each of `count` rows with itself. Both arrays begin at a cache line.
template <typename T, std::size_t kBytes>
TFDIST_PART void add_products(T* matrix, const T* rows, std::size_t count, std::size_t size) {
  using Vector = typename Vectors<T, kBytes>::Vector;
  constexpr std::size_t wide = Vectors<T, kBytes>::wide;
  const std::size_t across = size / wide;
  const Vector* packed = reinterpret_cast<const Vector*>(rows);
  for (std::size_t top = 0; top < size; top += kTall) {
    for (std::size_t column = top / (2 * wide) * 2; column < across; column += 2) {
      Vector* into = reinterpret_cast<Vector*>(matrix + top * size) + column;
      Vector sums[kTall][2];
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kTall; ++i) {
        sums[i][0] = into[i * across];
        sums[i][1] = into[i * across + 1];
      }
      for (std::size_t n = 0; n < count; ++n) {
        const Vector left = packed[n * across + column], right = packed[n * across + column + 1];
        const T* one = rows + n * size + top;
#pragma GCC unroll 4
        for (std::size_t i = 0; i < kTall; ++i) {
          sums[i][0] += one[i] * left;
          sums[i][1] += one[i] * right;
        }
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kTall; ++i) {
        into[i * across] = sums[i][0];
        into[i * across + 1] = sums[i][1];
      }
    }
  }
}

// Replace each matrix by U with U'U = matrix, and solve U'z = right side. The diagonal has reciprocals of U's.
// `fine` becomes false for each matrix that is not positive definite.
template <typename T, std::size_t kBytes>
TFDIST_PART void factorise(T* systems, std::size_t size, bool* fine) {
  using Vector = typename Vectors<T, kBytes>::Vector;
  constexpr std::size_t wide = Vectors<T, kBytes>::wide;
  const std::size_t across = size / wide;
  for (std::size_t k = 0; k < size; ++k) {
    for (std::size_t one = 0; one < kTogether; ++one) {
      T* matrix = systems + one * numbers_of_system<T>(size);
      T* right = matrix + size * size;
      T* top = matrix + k * size;
      Vector* tops = reinterpret_cast<Vector*>(top);
      Vector* rights = reinterpret_cast<Vector*>(right);
      fine[one] = fine[one] && top[k] > 0;  // false for a NaN
      const T reciprocal = 1 / std::sqrt(top[k]);
      const T solved = right[k] * reciprocal;
      for (std::size_t j = k / wide; j < across; ++j) {
        tops[j] *= reciprocal;
        rights[j] -= solved * tops[j];
      }
      right[size + k] = solved;
      for (std::size_t i = k + 1; i < size; ++i) {
        Vector* row = reinterpret_cast<Vector*>(matrix + i * size);
        for (std::size_t j = i / wide; j < across; ++j) row[j] -= top[i] * tops[j];
      }
      top[k] = reciprocal;
    }
  }
}

// Solve Ux = z in place.
template <typename T, std::size_t kBytes>
TFDIST_PART void substitute(T* systems, std::size_t size) {
  using Vector = typename Vectors<T, kBytes>::Vector;
  constexpr std::size_t wide = Vectors<T, kBytes>::wide;
  for (std::size_t k = size; k-- > 0;) {
    for (std::size_t one = 0; one < kTogether; ++one) {
      const T* top = systems + one * numbers_of_system<T>(size) + k * size;
      T* solution = systems + (one + 1) * numbers_of_system<T>(size) - size;
      Vector sums = Vector{};
      T known = 0;
      std::size_t j = k + 1;
      for (; j % wide; ++j) known += top[j] * solution[j];
      for (; j < size; j += wide) {
        sums += *reinterpret_cast<const Vector*>(top + j) * *reinterpret_cast<const Vector*>(solution + j);
      }
      for (std::size_t c = 0; c < wide; ++c) known += sums[c];
      solution[k] = (solution[k] - known) * top[k];
    }
  }
}

}  // namespace tfdist

#endif  // TFDIST_NATIVE_LEAST_SQUARES_SMALL_SYSTEMS_H_

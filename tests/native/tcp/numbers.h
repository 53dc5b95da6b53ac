// Numbers that members bring, and what comes out of a reduction of them.

#ifndef TFDIST_TESTS_NATIVE_TCP_NUMBERS_H_
#define TFDIST_TESTS_NATIVE_TCP_NUMBERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "../../../tfdist/native/collectives/dtype.h"

namespace tfdist::collectives::checks {

template <typename T>
T number(double value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BHalf>) {
    T half;
    internal::narrow(static_cast<float>(value), &half);
    return half;
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(static_cast<int>(value) % 2)};
  } else {
    return static_cast<T>(value);
  }
}

inline int sample(int rank, std::size_t i) { return static_cast<int>((i * 7 + 3 * static_cast<std::size_t>(rank) + i / 64) % 16); }

template <typename T>
std::vector<T> samples(int rank, std::size_t count) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = number<T>(sample(rank, i));
  return numbers;
}

template <typename T>
std::vector<T> reduced(int members, std::size_t count, Op op) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    int result = sample(0, i), any = sample(0, i) % 2, all = any;
    for (int rank = 1; rank < members; ++rank) {
      const int next = sample(rank, i);
      result = op == Op::kSum ? result + next : op == Op::kMin ? std::min(result, next) : std::max(result, next);
      any |= next % 2;
      all &= next % 2;
    }
    numbers[i] = number<T>(std::is_same_v<T, Bool> ? (op == Op::kMin ? all : any) : result);
  }
  return numbers;
}

template <typename T>
bool same(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}


}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_TCP_NUMBERS_H_

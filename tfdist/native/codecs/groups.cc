// Sums and maxima of groups.

#include <algorithm>
#include <vector>

#include "floats.h"
#include "kernels.h"
#include "vectorized.h"

namespace tfdist::codecs {
namespace {

template <Of of>
TFDIST_PART_OF_VECTORIZED float taken(float number) {
  const std::uint32_t bits = bits_of(number);
  if constexpr (of == Of::kSquares) return number * number;
  if constexpr (of == Of::kSizes) return of_bits(bits & kSize);
  if constexpr (of == Of::kNegatives) return bits & kSign ? number : 0.0f;
  return bits & kSign ? 0.0f : number;
}

template <Of of>
TFDIST_PART_OF_VECTORIZED void sums_of(const float* numbers, std::size_t count, std::size_t group, float* sums) {
  std::vector<float> memory(group / 2);
  float* const halves = memory.data();
  for (std::size_t begin = 0; begin < count; begin += group, numbers += group) {
    std::size_t left = group / 2;  // a group is even
    for (std::size_t i = 0; i < left; ++i) halves[i] = taken<of>(numbers[i]) + taken<of>(numbers[left + i]);
    while (left > 1) {
      const std::size_t half = left / 2;
      for (std::size_t i = 0; i < half; ++i) halves[i] += halves[half + i];
      if (left % 2) halves[half] = halves[left - 1];
      left = half + left % 2;
    }
    *sums++ = halves[0];
  }
}

}  // namespace

TFDIST_VECTORIZED void group_sums(const float* numbers, std::size_t count, std::size_t group, Of of, float* sums) {
  switch (of) {
    case Of::kSquares:
      return sums_of<Of::kSquares>(numbers, count, group, sums);
    case Of::kSizes:
      return sums_of<Of::kSizes>(numbers, count, group, sums);
    case Of::kNegatives:
      return sums_of<Of::kNegatives>(numbers, count, group, sums);
    case Of::kPositives:
      return sums_of<Of::kPositives>(numbers, count, group, sums);
  }
}

TFDIST_VECTORIZED void group_largest(const float* numbers, std::size_t count, std::size_t group, float* largest) {
  for (std::size_t begin = 0; begin < count; begin += group, numbers += group) {
    std::int32_t most = 0;  // signed, which every processor compares
    for (std::size_t i = 0; i < group; ++i) most = std::max(most, static_cast<std::int32_t>(bits_of(numbers[i]) & kSize));
    *largest++ = of_bits(static_cast<std::uint32_t>(most));
  }
}

}  // namespace tfdist::codecs

// Sums of squares of arrays, as the norm of a gradient needs them.

#ifndef TFDIST_NATIVE_STAMPS_SQUARES_H_
#define TFDIST_NATIVE_STAMPS_SQUARES_H_

#include <algorithm>
#include <cstddef>

#include "../codecs/vectorized.h"
#include "../collectives/dtype.h"

namespace tfdist::stamps {

constexpr std::size_t kBlock = 4096;  // numbers whose squares are added up in their own precision

// Squares of floats of 16 bits, which overflow at 256, are taken in float32; sums of blocks are added up in float64.
template <typename Wide, typename T, typename Widen>
TFDIST_PART_OF_VECTORIZED double squares_of(const T* numbers, std::size_t count, const Widen& widen) {
  constexpr std::size_t kLanes = 16;  // sums that do not wait for each other
  double total = 0;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, count);
    Wide lanes[kLanes] = {};
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const Wide number = widen(numbers[i + lane]);
        lanes[lane] += number * number;
      }
    }
    for (; i < end; ++i) {
      const Wide number = widen(numbers[i]);
      lanes[0] += number * number;
    }
    double block = 0;
    for (const Wide lane : lanes) block += static_cast<double>(lane);
    total += block;
  }
  return total;
}

double squares(const float* numbers, std::size_t count);
double squares(const double* numbers, std::size_t count);
double squares(const collectives::Half* numbers, std::size_t count);
double squares(const collectives::BHalf* numbers, std::size_t count);

}  // namespace tfdist::stamps

#endif  // TFDIST_NATIVE_STAMPS_SQUARES_H_

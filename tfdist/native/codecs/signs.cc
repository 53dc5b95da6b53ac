// One bit for each number: its sign.

#include "floats.h"
#include "kernels.h"
#include "packing.h"
#include "vectorized.h"

namespace tfdist::codecs {

TFDIST_VECTORIZED void to_signs(const float* numbers, std::size_t count, std::uint32_t* words) {
  for (std::size_t at = 0; at < count; at += kBlock) *words++ = signs_of(numbers + at);
}

TFDIST_VECTORIZED void from_signs(const std::uint32_t* words, std::size_t count, std::size_t group, const float* low,
                                  const float* high, float* numbers) {
  for (std::size_t begin = 0; begin < count; begin += group) {
    const std::uint32_t negative = bits_of(*low++), other = bits_of(*high++);
    for (std::size_t at = begin; at < begin + group; at += kBlock) {
      const std::uint32_t signs = *words++;
      for (int i = 0; i < kBlock; ++i) {
        numbers[at + static_cast<std::size_t>(i)] = of_bits(signs & 1u << i ? negative : other);
      }
    }
  }
}

}  // namespace tfdist::codecs

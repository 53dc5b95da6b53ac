// Levels of a group's scale: QSGD, TernGrad.

#include "floats.h"
#include "kernels.h"
#include "packing.h"
#include "philox.h"
#include "vectorized.h"

namespace tfdist::codecs {
namespace {

template <int bits>
constexpr int kLevels = (1 << (bits - 1)) - 1;

template <int bits>
TFDIST_PART_OF_VECTORIZED void encode(const float* numbers, std::size_t count, std::size_t group, const float* scales,
                                      const Philox& random, std::uint64_t first, std::uint32_t* words) {
  constexpr int most = kLevels<bits>;
  Drawn drawn(random, first, count);
  for (std::size_t begin = 0; begin < count; begin += group) {
    const float scale = *scales++;
    const float per_number = scale == 0.0f ? 0.0f : static_cast<float>(most) / scale;
    for (std::size_t at = begin; at < begin + group; at += kBlock, words += bits) {
      const float* const block = numbers + at;
      const std::uint32_t* const fractions = drawn.next();
      std::uint8_t codes[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        const std::uint32_t number = bits_of(block[i]);
        float level = of_bits(number & kSize) * per_number + uniform(fractions[i]);
        level = level > static_cast<float>(most) ? static_cast<float>(most) : level;
        level = level == level ? level : 0.0f;  // NaN
        const int whole = static_cast<int>(level);
        codes[i] = static_cast<std::uint8_t>(number & kSign ? most - whole : most + whole);
      }
      pack<bits>(codes, words);
    }
  }
}

template <int bits>
TFDIST_PART_OF_VECTORIZED void decode(const std::uint32_t* words, std::size_t count, std::size_t group,
                                      const float* scales, float* numbers) {
  for (std::size_t begin = 0; begin < count; begin += group) {
    const float level = *scales++ * static_cast<float>(1.0 / kLevels<bits>);
    for (std::size_t at = begin; at < begin + group; at += kBlock, words += bits) {
      std::uint8_t codes[kBlock];
      unpack<bits>(words, codes);
      for (int i = 0; i < kBlock; ++i) {
        numbers[at + static_cast<std::size_t>(i)] = static_cast<float>(codes[i] - kLevels<bits>) * level;
      }
    }
  }
}

}  // namespace

TFDIST_VECTORIZED void to_levels(int bits, const float* numbers, std::size_t count, std::size_t group,
                                 const float* scales, const Philox& random, std::uint64_t first, std::uint32_t* words) {
  if (bits == 2) encode<2>(numbers, count, group, scales, random, first, words);
  if (bits == 4) encode<4>(numbers, count, group, scales, random, first, words);
  if (bits == 8) encode<8>(numbers, count, group, scales, random, first, words);
}

TFDIST_VECTORIZED void from_levels(int bits, const std::uint32_t* words, std::size_t count, std::size_t group,
                                   const float* scales, float* numbers) {
  if (bits == 2) decode<2>(words, count, group, scales, numbers);
  if (bits == 4) decode<4>(words, count, group, scales, numbers);
  if (bits == 8) decode<8>(words, count, group, scales, numbers);
}

}  // namespace tfdist::codecs

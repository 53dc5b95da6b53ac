// Natural compression: signs and exponents.

#include "floats.h"
#include "kernels.h"
#include "packing.h"
#include "philox.h"
#include "vectorized.h"

namespace tfdist::codecs {

namespace {
constexpr std::uint32_t kLargest = 254;  // of the exponents of finite numbers
}

TFDIST_VECTORIZED void to_powers(const float* numbers, std::size_t count, const Philox& random, std::uint64_t first,
                                 std::uint32_t* exponents, std::uint32_t* signs) {
  Drawn drawn(random, first, count);
  for (std::size_t at = 0; at < count; at += kBlock, exponents += kBlock / 4) {
    const std::uint32_t* const fractions = drawn.next();
    std::uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const std::uint32_t size = bits_of(numbers[at + static_cast<std::size_t>(i)]) & kSize;
      const std::uint32_t added = size < kLargest << kMantissa ? fraction(fractions[i]) : 0;
      codes[i] = static_cast<std::uint8_t>((size + added) >> kMantissa);
    }
    pack<8>(codes, exponents);
    *signs++ = signs_of(numbers + at);
  }
}

TFDIST_VECTORIZED void from_powers(const std::uint32_t* exponents, const std::uint32_t* signs, std::size_t count,
                                   float* numbers) {
  for (std::size_t at = 0; at < count; at += kBlock, exponents += kBlock / 4) {
    std::uint8_t codes[kBlock];
    unpack<8>(exponents, codes);
    const std::uint32_t word = *signs++;
    for (int i = 0; i < kBlock; ++i) {
      const std::uint32_t sign = word & 1u << i ? kSign : 0;
      numbers[at + static_cast<std::size_t>(i)] = of_bits(sign | static_cast<std::uint32_t>(codes[i]) << kMantissa);
    }
  }
}

}  // namespace tfdist::codecs

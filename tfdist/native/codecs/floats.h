// The bits of floats, and how a processor takes the smallest of them.

#ifndef TFDIST_NATIVE_CODECS_FLOATS_H_
#define TFDIST_NATIVE_CODECS_FLOATS_H_

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "vectorized.h"

namespace tfdist::codecs {

constexpr std::uint32_t kSign = 0x80000000u;
constexpr std::uint32_t kSize = 0x7FFFFFFFu;  // all but the sign: greater bits are greater numbers, then infinity, NaN
constexpr int kMantissa = 23;                 // bits

TFDIST_PART_OF_VECTORIZED std::uint32_t bits_of(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

TFDIST_PART_OF_VECTORIZED float of_bits(std::uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

// While it lives its thread takes denormal numbers for zeros and makes zeros of them, as TensorFlow's threads do: what
// comes out does not depend on whose thread it is.
class NoDenormals {
 public:
#if defined(__x86_64__)
  NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // flush to zero, denormals are zeros
  ~NoDenormals() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
#elif defined(__aarch64__)
  NoDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ | (std::uint64_t{1} << 24)));  // FZ
  }
  ~NoDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  std::uint64_t before_;
#else
  NoDenormals() = default;
#endif
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;
};

}  // namespace tfdist::codecs

#endif  // TFDIST_NATIVE_CODECS_FLOATS_H_

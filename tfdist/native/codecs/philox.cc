#include "philox.h"

#if defined(__x86_64__) && !defined(TFDIST_PORTABLE_CODECS)
#include <immintrin.h>
#endif

namespace tfdist::codecs {
namespace {

constexpr std::uint32_t kLeft = 0xD2511F53u, kRight = 0xCD9E8D57u;      // factors
constexpr std::uint32_t kNextKey[2] = {0x9E3779B9u, 0xBB67AE85u};       // added to the key after a round
constexpr int kRounds = 10;

using Draw = void (*)(const Philox&, std::uint64_t, std::size_t, std::uint32_t*);

#if defined(__x86_64__) && !defined(TFDIST_PORTABLE_CODECS)

// Four counters side by side, each word in the lower half of 64 bits: that is where a multiplication looks for its
// factors, so what is left of products in the upper halves need not be cleared. No compiler finds that by itself.
__attribute__((target("avx2"))) void draw_with_avx2(const Philox& random, std::uint64_t first, std::size_t count,
                                                    std::uint32_t* words) {
  const __m256i left = _mm256_set1_epi64x(kLeft), right = _mm256_set1_epi64x(kRight);
  const __m256i place0 = _mm256_set1_epi64x(random.place[0]), place1 = _mm256_set1_epi64x(random.place[1]);
  __m256i counter = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first / 4)), _mm256_set_epi64x(3, 2, 1, 0));
  for (std::size_t at = 0; at < count; at += 16, counter = _mm256_add_epi64(counter, _mm256_set1_epi64x(4))) {
    __m256i a = counter, b = _mm256_srli_epi64(counter, 32), c = place0, d = place1;
    std::uint32_t key0 = random.key[0], key1 = random.key[1];
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      const __m256i of_a = _mm256_mul_epu32(left, a), of_c = _mm256_mul_epu32(right, c);
      a = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(of_c, 32), b), _mm256_set1_epi64x(key0));
      b = of_c;
      c = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(of_a, 32), d), _mm256_set1_epi64x(key1));
      d = of_a;
      key0 += kNextKey[0];
      key1 += kNextKey[1];
    }
    const __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
    const __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    auto* const into = reinterpret_cast<__m256i*>(words + at);
    _mm256_storeu_si256(into, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(into + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

Draw best() { return __builtin_cpu_supports("avx2") ? draw_with_avx2 : draw_anywhere; }

#else

Draw best() { return draw_anywhere; }

#endif

}  // namespace

void draw_anywhere(const Philox& random, std::uint64_t first, std::size_t count, std::uint32_t* words) {
  for (std::size_t i = 0; i < count / 4; ++i) {
    const std::uint64_t counter = first / 4 + i;
    std::uint32_t a = static_cast<std::uint32_t>(counter), b = static_cast<std::uint32_t>(counter >> 32);
    std::uint32_t c = random.place[0], d = random.place[1], key0 = random.key[0], key1 = random.key[1];
#pragma GCC unroll 10  // so that what is left is a loop over counters, which compilers do side by side
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t of_a = std::uint64_t{kLeft} * a, of_c = std::uint64_t{kRight} * c;
      a = static_cast<std::uint32_t>(of_c >> 32) ^ b ^ key0;
      b = static_cast<std::uint32_t>(of_c);
      c = static_cast<std::uint32_t>(of_a >> 32) ^ d ^ key1;
      d = static_cast<std::uint32_t>(of_a);
      key0 += kNextKey[0];
      key1 += kNextKey[1];
    }
    words[4 * i] = a;
    words[4 * i + 1] = b;
    words[4 * i + 2] = c;
    words[4 * i + 3] = d;
  }
}

void draw(const Philox& random, std::uint64_t first, std::size_t count, std::uint32_t* words) {
  static const Draw chosen = best();
  chosen(random, first, count, words);
}

}  // namespace tfdist::codecs

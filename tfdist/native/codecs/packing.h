// Small integers side by side in words, the first one in the lowest bits, 32 of them at a time.

#ifndef TFDIST_NATIVE_CODECS_PACKING_H_
#define TFDIST_NATIVE_CODECS_PACKING_H_

#include <cstdint>
#include <cstring>

#include "floats.h"
#include "vectorized.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte of a word is its lowest");

namespace tfdist::codecs {

constexpr int kBlock = 32;  // numbers that are packed at once

// Moves what is in the low `bits` of each of eight bytes next to each other, and back.
template <int bits>
TFDIST_PART_OF_VECTORIZED std::uint64_t gathered(std::uint64_t eight) {
  static_assert(bits == 2 || bits == 4, "of 8 nothing is to be moved");
  if constexpr (bits == 4) {
    eight = (eight | eight >> 4) & 0x00FF00FF00FF00FFu;
    eight = (eight | eight >> 8) & 0x0000FFFF0000FFFFu;
    return (eight | eight >> 16) & 0xFFFFFFFFu;
  } else {
    eight = (eight | eight >> 6) & 0x000F000F000F000Fu;
    eight = (eight | eight >> 12) & 0x000000FF000000FFu;
    return (eight | eight >> 24) & 0xFFFFu;
  }
}

template <int bits>
TFDIST_PART_OF_VECTORIZED std::uint64_t scattered(std::uint64_t eight) {
  if constexpr (bits == 4) {
    eight = (eight | eight << 16) & 0x0000FFFF0000FFFFu;
    eight = (eight | eight << 8) & 0x00FF00FF00FF00FFu;
    return (eight | eight << 4) & 0x0F0F0F0F0F0F0F0Fu;
  } else {
    eight = (eight | eight << 24) & 0x000000FF000000FFu;
    eight = (eight | eight << 12) & 0x000F000F000F000Fu;
    return (eight | eight << 6) & 0x0303030303030303u;
  }
}

// Packs kBlock integers below 2^bits into `bits` words.
template <int bits>
TFDIST_PART_OF_VECTORIZED void pack(const std::uint8_t* codes, std::uint32_t* words) {
  if constexpr (bits == 8) {
    std::memcpy(words, codes, kBlock);
  } else {
    for (int i = 0; i < kBlock / 8; ++i) {
      std::uint64_t eight;
      std::memcpy(&eight, codes + 8 * i, 8);
      eight = gathered<bits>(eight);
      std::memcpy(reinterpret_cast<char*>(words) + i * bits, &eight, bits);
    }
  }
}

template <int bits>
TFDIST_PART_OF_VECTORIZED void unpack(const std::uint32_t* words, std::uint8_t* codes) {
  if constexpr (bits == 8) {
    std::memcpy(codes, words, kBlock);
  } else {
    for (int i = 0; i < kBlock / 8; ++i) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, reinterpret_cast<const char*>(words) + i * bits, bits);
      eight = scattered<bits>(eight);
      std::memcpy(codes + 8 * i, &eight, 8);
    }
  }
}

// The signs of kBlock numbers as the bits of a word.
TFDIST_PART_OF_VECTORIZED std::uint32_t signs_of(const float* numbers) {
  std::uint32_t word = 0;
  for (int i = 0; i < kBlock; ++i) word |= (bits_of(numbers[i]) >> 31) << i;
  return word;
}

}  // namespace tfdist::codecs

#endif  // TFDIST_NATIVE_CODECS_PACKING_H_

// CRC32C (Castagnoli) as TFRecord files have it; with the processor's instruction where there is one.

#ifndef TFDIST_NATIVE_CRC32C_H_
#define TFDIST_NATIVE_CRC32C_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(TFDIST_PORTABLE_CRC) && defined(__x86_64__)
#include <nmmintrin.h>
#define TFDIST_CRC_TARGET __attribute__((target("sse4.2")))
#elif !defined(TFDIST_PORTABLE_CRC) && defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define TFDIST_CRC_TARGET
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the framing of records is read as the machine stores it");

namespace tfdist {

template <typename T>
inline T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);  // nothing in a file is aligned
  return value;
}

// Eight tables: the first advances a state by one byte, table k by one byte and k zeros, so eight bytes take one step.
class PortableCrc32c {
 public:
  PortableCrc32c() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t state = byte;
      for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (state & 1 ? 0x82f63b78u : 0u);
      tables_[0][byte] = state;
    }
    for (size_t k = 1; k < tables_.size(); ++k) {
      for (size_t byte = 0; byte < 256; ++byte) {
        const uint32_t before = tables_[k - 1][byte];
        tables_[k][byte] = (before >> 8) ^ tables_[0][before & 0xff];
      }
    }
  }

  uint32_t operator()(uint32_t state, const uint8_t* data, size_t size) const {
    for (; size >= 8; data += 8, size -= 8) {
      uint64_t word = Load<uint64_t>(data) ^ state;
      state = 0;
      for (int k = 7; k >= 0; --k, word >>= 8) state ^= tables_[k][word & 0xff];
    }
    for (; size > 0; ++data, --size) state = (state >> 8) ^ tables_[0][(state ^ *data) & 0xff];
    return state;
  }

 private:
  std::array<std::array<uint32_t, 256>, 8> tables_;
};

#ifdef TFDIST_CRC_TARGET

#ifdef __x86_64__
TFDIST_CRC_TARGET inline uint32_t Step8(uint32_t state, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(state, word));
}
TFDIST_CRC_TARGET inline uint32_t Step1(uint32_t state, uint8_t byte) { return _mm_crc32_u8(state, byte); }
inline bool HasCrcInstruction() { return __builtin_cpu_supports("sse4.2"); }
#else
inline uint32_t Step8(uint32_t state, uint64_t word) { return __crc32cd(state, word); }
inline uint32_t Step1(uint32_t state, uint8_t byte) { return __crc32cb(state, byte); }
inline bool HasCrcInstruction() { return true; }
#endif

// The instruction gives its result three cycles after it began, and another may begin in every cycle: three
// neighbouring blocks are worked on at once. A table advances a state over a block of zeros, to put them together.
class HardwareCrc32c {
 public:
  TFDIST_CRC_TARGET HardwareCrc32c() {
    std::array<uint32_t, 32> advanced;
    for (size_t bit = 0; bit < 32; ++bit) {
      uint32_t state = 1u << bit;
      for (size_t done = 0; done < kBlock; done += 8) state = Step8(state, 0);
      advanced[bit] = state;
    }
    for (size_t k = 0; k < zeros_.size(); ++k) {
      for (size_t byte = 0; byte < 256; ++byte) {
        uint32_t state = 0;  // advancing is linear: the sum of what becomes of each bit
        for (size_t bit = 0; bit < 8; ++bit) state ^= (byte >> bit) & 1 ? advanced[8 * k + bit] : 0u;
        zeros_[k][byte] = state;
      }
    }
  }

  TFDIST_CRC_TARGET uint32_t operator()(uint32_t state, const uint8_t* data, size_t size) const {
    for (; size >= 3 * kBlock; data += 3 * kBlock, size -= 3 * kBlock) {
      uint32_t second = 0, third = 0;
      for (size_t at = 0; at < kBlock; at += 8) {
        state = Step8(state, Load<uint64_t>(data + at));
        second = Step8(second, Load<uint64_t>(data + kBlock + at));
        third = Step8(third, Load<uint64_t>(data + 2 * kBlock + at));
      }
      state = OverZeros(OverZeros(state) ^ second) ^ third;
    }
    for (; size >= 8; data += 8, size -= 8) state = Step8(state, Load<uint64_t>(data));
    for (; size > 0; ++data, --size) state = Step1(state, *data);
    return state;
  }

 private:
  static constexpr size_t kBlock = 512;

  uint32_t OverZeros(uint32_t state) const {
    return zeros_[0][state & 0xff] ^ zeros_[1][(state >> 8) & 0xff] ^ zeros_[2][(state >> 16) & 0xff] ^
           zeros_[3][state >> 24];
  }

  std::array<std::array<uint32_t, 256>, 4> zeros_;
};

#endif  // TFDIST_CRC_TARGET

// The state over bytes that follow those of `state`; the first state is ~0u, and the CRC the inverse of the last one.
inline uint32_t Extend(uint32_t state, const uint8_t* data, size_t size) {
#ifdef TFDIST_CRC_TARGET
  static const bool has_instruction = HasCrcInstruction();
  if (has_instruction) {
    static const HardwareCrc32c hardware;
    return hardware(state, data, size);
  }
#endif
  static const PortableCrc32c portable;
  return portable(state, data, size);
}

// As records store it: a file that holds records in records would otherwise have checksums of checksums.
inline uint32_t Masked(uint32_t state) {
  const uint32_t crc = ~state;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

inline uint32_t MaskedCrc32c(const uint8_t* data, size_t size) { return Masked(Extend(~0u, data, size)); }

// Copies, and returns the checksum of what was copied. One part after the other: it is read from memory once, in order,
// and is still in the nearest cache when its checksum is taken.
inline uint32_t CopyWithMaskedCrc32c(uint8_t* to, const uint8_t* from, size_t size) {
  constexpr size_t kPart = 8 * 3 * 512;
  uint32_t state = ~0u;
  while (size > 0) {
    const size_t part = size < kPart ? size : kPart;
    std::memcpy(to, from, part);
    state = Extend(state, to, part);
    to += part;
    from += part;
    size -= part;
  }
  return Masked(state);
}

}  // namespace tfdist

#endif  // TFDIST_NATIVE_CRC32C_H_

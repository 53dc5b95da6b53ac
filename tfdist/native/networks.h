// Feistel networks over many values at a time, bit for bit those of tfdist/data/order/epoch_orders.py.

#ifndef TFDIST_NATIVE_NETWORKS_H_
#define TFDIST_NATIVE_NETWORKS_H_

#include <cstddef>
#include <cstdint>

// Functions for one kind of processor must inline the functions that they call, or those are compiled for any kind.
#define TFDIST_NETWORK_PART inline __attribute__((always_inline))

namespace tfdist {

constexpr int kRounds = 8;
constexpr size_t kValues = 1024;  // values at a time: they stay in the nearest cache
// A round of one vector waits for two products, so several vectors are computed together.
constexpr size_t kVectors = 4;

// A permutation of 0 to size - 1: a network over the next power of two, whose values go through it until inside.
struct Network {
  const uint32_t* keys;  // of the rounds
  uint32_t left, right;  // masks of the halves
  uint32_t shift;        // bits of the right half
  uint64_t size;

  Network(const uint32_t* keys, int64_t size) : keys(keys), size(static_cast<uint64_t>(size)) {
    uint32_t bits = 0;
    while (bits < 64 && (this->size - 1) >> bits != 0) ++bits;
    if (bits < 2) bits = 2;
    shift = bits / 2;
    right = static_cast<uint32_t>((uint64_t{1} << shift) - 1);
    left = static_cast<uint32_t>((uint64_t{1} << (bits - shift)) - 1);
  }
};

// The halves of values, and the place of each in the result.
struct Halves {
  alignas(64) uint32_t left[kValues] = {};
  alignas(64) uint32_t right[kValues] = {};
  uint32_t place[kValues];

  TFDIST_NETWORK_PART void Set(size_t at, uint64_t value, const Network& of) {
    left[at] = static_cast<uint32_t>(value >> of.shift);
    right[at] = static_cast<uint32_t>(value) & of.right;
  }
};

// Puts `kCount` vectors of `kBytes` each through all rounds.
template <size_t kBytes, size_t kCount>
TFDIST_NETWORK_PART void Rounds(const Network& of, uint32_t* left, uint32_t* right) {
  typedef uint32_t Vector __attribute__((vector_size(kBytes), may_alias));
  Vector* lefts = reinterpret_cast<Vector*>(left);
  Vector* rights = reinterpret_cast<Vector*>(right);
  Vector l[kCount], r[kCount];
#pragma GCC unroll 4
  for (size_t i = 0; i < kCount; ++i) {
    l[i] = lefts[i];
    r[i] = rights[i];
  }
#pragma GCC unroll 8
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t key = of.keys[round];
    const uint32_t mask = round % 2 == 0 ? of.left : of.right;  // the halves change places, and widths with them
#pragma GCC unroll 4
    for (size_t i = 0; i < kCount; ++i) {
      Vector mixture = r[i] + key;
      mixture ^= mixture >> 16;
      mixture *= 0x85EBCA6Bu;
      mixture ^= mixture >> 13;
      mixture *= 0xC2B2AE35u;
      mixture ^= mixture >> 16;
      mixture = (mixture & mask) ^ l[i];
      l[i] = r[i];
      r[i] = mixture;
    }
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < kCount; ++i) {
    lefts[i] = l[i];
    rights[i] = r[i];
  }
}

// Computes the values of a permutation at `count` positions, whose halves are given and overwritten, and calls
// `put(place, value)` for each. All positions are below the size, so each comes back inside: a permutation has cycles.
template <size_t kBytes, typename Put>
TFDIST_NETWORK_PART void Permute(const Network& of, Halves& halves, size_t count, const Put& put) {
  constexpr size_t wide = kBytes / sizeof(uint32_t);
  for (size_t i = 0; i < count; ++i) halves.place[i] = static_cast<uint32_t>(i);
  while (count > 0) {
    size_t at = 0;
    for (; at + kVectors * wide <= count; at += kVectors * wide) {
      Rounds<kBytes, kVectors>(of, halves.left + at, halves.right + at);
    }
    for (; at < count; at += wide) Rounds<kBytes, 1>(of, halves.left + at, halves.right + at);
    size_t outside = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t left = halves.left[i], right = halves.right[i], place = halves.place[i];
      const uint64_t value = static_cast<uint64_t>(left) << of.shift | right;
      put(place, static_cast<int64_t>(value));  // of a value outside, overwritten later
      halves.left[outside] = left;
      halves.right[outside] = right;
      halves.place[outside] = place;
      outside += value >= of.size;
    }
    count = outside;
  }
}

}  // namespace tfdist

#endif  // TFDIST_NATIVE_NETWORKS_H_

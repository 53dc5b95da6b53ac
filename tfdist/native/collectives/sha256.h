// SHA-256 and HMAC-SHA256 (FIPS 180-4, RFC 2104), for the few bytes with which two members prove that they have one key.

#ifndef TFDIST_NATIVE_COLLECTIVES_SHA256_H_
#define TFDIST_NATIVE_COLLECTIVES_SHA256_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tfdist::collectives {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  static constexpr std::size_t kBlock = 64;

  void add(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    total_ += bytes;
    while (bytes > 0) {
      const std::size_t part = std::min(bytes, kBlock - filled_);
      std::memcpy(block_.data() + filled_, from, part);
      filled_ += part;
      from += part;
      bytes -= part;
      if (filled_ == kBlock) digest_block();
    }
  }

  Digest finish() {
    const std::uint64_t bits = total_ * 8;
    block_[filled_++] = 0x80;
    if (filled_ > kBlock - sizeof bits) {
      std::fill(block_.begin() + filled_, block_.end(), std::uint8_t{0});
      digest_block();
    }
    std::fill(block_.begin() + filled_, block_.end(), std::uint8_t{0});
    for (std::size_t i = 0; i < sizeof bits; ++i) block_[kBlock - 1 - i] = static_cast<std::uint8_t>(bits >> (8 * i));
    digest_block();
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - i % 4 * 8));
    return digest;
  }

 private:
  static constexpr std::array<std::uint32_t, 64> kRounds = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

  static constexpr std::uint32_t rotated(std::uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

  void digest_block() {
    std::array<std::uint32_t, 64> words;
    for (std::size_t i = 0; i < 16; ++i) {
      words[i] = 0;
      for (std::size_t k = 0; k < 4; ++k) words[i] = words[i] << 8 | block_[4 * i + k];
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t early = words[i - 15], late = words[i - 2];
      words[i] = words[i - 16] + (rotated(early, 7) ^ rotated(early, 18) ^ early >> 3) + words[i - 7] +
                 (rotated(late, 17) ^ rotated(late, 19) ^ late >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
      const std::uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const std::array<std::uint32_t, 8> change = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < change.size(); ++i) state_[i] += change[i];
    filled_ = 0;
  }

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, kBlock> block_{};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

inline Digest sha256(std::string_view data) {
  Sha256 hash;
  hash.add(data.data(), data.size());
  return hash.finish();
}

inline Digest hmac_sha256(std::string_view key, std::string_view message) {
  std::array<std::uint8_t, Sha256::kBlock> padded{};
  if (key.size() > padded.size()) {
    const Digest digest = sha256(key);
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const auto pass = [&](std::uint8_t mask, const void* data, std::size_t bytes) {
    std::array<std::uint8_t, Sha256::kBlock> masked = padded;
    for (std::uint8_t& byte : masked) byte ^= mask;
    Sha256 hash;
    hash.add(masked.data(), masked.size());
    hash.add(data, bytes);
    return hash.finish();
  };
  const Digest inner = pass(0x36, message.data(), message.size());
  return pass(0x5c, inner.data(), inner.size());
}

// In a time that does not depend on where the two differ.
inline bool equal_in_constant_time(const Digest& one, const Digest& other) {
  std::uint8_t difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) difference = static_cast<std::uint8_t>(difference | (one[i] ^ other[i]));
  return difference == 0;
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SHA256_H_

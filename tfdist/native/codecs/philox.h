// The random numbers of tf.random.stateless_uniform: Philox4x32-10, four words for each value of a counter.
//
// Source: J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.

#ifndef TFDIST_NATIVE_CODECS_PHILOX_H_
#define TFDIST_NATIVE_CODECS_PHILOX_H_

#include <cstddef>
#include <cstdint>

#include "floats.h"
#include "packing.h"
#include "vectorized.h"

namespace tfdist::codecs {

struct Philox {
  std::uint32_t key[2];
  std::uint32_t place[2];  // the upper half of the counter, whose lower half is 0 at the first number
};

// Draws the words of the numbers first ... first + count - 1; both are multiples of 16. Word i is that of TensorFlow's
// element i, whatever the shape.
void draw(const Philox& random, std::uint64_t first, std::size_t count, std::uint32_t* words);

// The same, without instructions that some processors have; for tests.
void draw_anywhere(const Philox& random, std::uint64_t first, std::size_t count, std::uint32_t* words);

// The words of a row, kBlock at a time.
class Drawn {
 public:
  Drawn(const Philox& random, std::uint64_t first, std::size_t count) : random_(random), first_(first), left_(count) {}

  TFDIST_PART_OF_VECTORIZED const std::uint32_t* next() {
    if (at_ == ready_) refill();
    at_ += kBlock;
    return words_ + at_ - kBlock;
  }

 private:
  void refill() {
    ready_ = left_ < kMost ? left_ : kMost;
    at_ = 0;
    draw(random_, first_, ready_, words_);
    first_ += ready_;
    left_ -= ready_;
  }

  static constexpr std::size_t kMost = 1024;  // 4 KiB, which stay in the nearest cache

  const Philox& random_;
  std::uint64_t first_;
  std::size_t left_, at_ = 0, ready_ = 0;
  alignas(32) std::uint32_t words_[kMost];
};

// The 23 bits of a word that TensorFlow makes a float, or an integer below 2^23, of.
TFDIST_PART_OF_VECTORIZED std::uint32_t fraction(std::uint32_t word) { return word & ((1u << kMantissa) - 1); }

// TensorFlow's float for a word: 0 <= u < 1.
TFDIST_PART_OF_VECTORIZED float uniform(std::uint32_t word) { return of_bits(0x3F800000u | fraction(word)) - 1.0f; }

}  // namespace tfdist::codecs

#endif  // TFDIST_NATIVE_CODECS_PHILOX_H_

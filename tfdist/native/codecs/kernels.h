// What codecs do with the numbers of a row, without TensorFlow: plain loops over memory that is theirs.
//
// tfdist/compression/codecs has the same as TensorFlow's operations, and says what it is for. Both come to the same bits,
// except that of several NaNs any may go on. Counts are multiples of kBlock, and so are the sizes of groups, of which
// counts are multiples. First is the place of the first number in the tensor, for what is drawn.

#ifndef TFDIST_NATIVE_CODECS_KERNELS_H_
#define TFDIST_NATIVE_CODECS_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "philox.h"

namespace tfdist::codecs {

// What of the numbers of a group is added up.
enum class Of : std::int64_t { kSquares, kSizes, kNegatives, kPositives };

// The sum of each group, added up by halves: the first with the middle one and so on, again and again.
void group_sums(const float* numbers, std::size_t count, std::size_t group, Of of, float* sums);

// The largest |x| of each group; NaN where there is one.
void group_largest(const float* numbers, std::size_t count, std::size_t group, float* largest);

// Sign and level of each number, of 2^(bits - 1) - 1 levels of its group's scale, drawn so that the mean is the number.
void to_levels(int bits, const float* numbers, std::size_t count, std::size_t group, const float* scales,
               const Philox& random, std::uint64_t first, std::uint32_t* words);
void from_levels(int bits, const std::uint32_t* words, std::size_t count, std::size_t group, const float* scales,
                 float* numbers);

// The signs of numbers, and one of two numbers of the group by them.
void to_signs(const float* numbers, std::size_t count, std::uint32_t* words);
void from_signs(const std::uint32_t* words, std::size_t count, std::size_t group, const float* low, const float* high,
                float* numbers);

// Powers of two, drawn so that the mean is the number: exponents, four in a word, and signs.
void to_powers(const float* numbers, std::size_t count, const Philox& random, std::uint64_t first,
               std::uint32_t* exponents, std::uint32_t* signs);
void from_powers(const std::uint32_t* exponents, const std::uint32_t* signs, std::size_t count, float* numbers);

// The places of the k largest |x|, in ascending order; of equal ones the first. NaN is larger than all numbers.
// 1 <= k <= count < 2^31, and count may be any.
void largest(const float* row, std::size_t count, std::size_t k, std::int32_t* places);

}  // namespace tfdist::codecs

#endif  // TFDIST_NATIVE_CODECS_KERNELS_H_

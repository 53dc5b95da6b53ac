// Checks what codecs do with rows by itself, without TensorFlow, for sanitizers and other processors: `codecs`.
//
//   drawn      Philox against published numbers, and both ways of drawing against each other
//   sums       of groups of every size, against float64
//   levels     and powers and signs: there and back, in memory that is not one number longer than it must be
//   selection  the largest of rows with ties, few and many, against a sort
//
// It ends with 0 if everything was right, and says what was not.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../../../tfdist/native/codecs/floats.h"
#include "../../../tfdist/native/codecs/kernels.h"
#include "../../../tfdist/native/codecs/packing.h"
#include "../../../tfdist/native/codecs/philox.h"

namespace {

using namespace tfdist::codecs;

int wrong = 0;

void require(bool is_so, const std::string& what) {
  if (is_so) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

std::mt19937 engine(7);

std::vector<float> normal(std::size_t count) {
  std::normal_distribution<float> distribution;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = distribution(engine);
  return numbers;
}

void drawn() {
  const std::uint32_t published[] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};  // by Random123, of zeros
  std::vector<std::uint32_t> words(16);
  draw({{0, 0}, {0, 0}}, 0, 16, words.data());
  require(std::equal(published, published + 4, words.begin()), "the words of Philox");
  const Philox random{{0xa4093822u, 0x299f31d0u}, {0x13198a2eu, 0x03707344u}};
  const std::uint64_t starts[] = {0, 16, 4 * ((std::uint64_t{1} << 32) - 2), std::uint64_t{1} << 40};
  for (const std::uint64_t first : starts) {  // one of them where the lower word of the counter begins anew
    for (const std::size_t count : {std::size_t{0}, std::size_t{16}, std::size_t{4096}}) {
      std::vector<std::uint32_t> one(count), other(count);
      draw(random, first, count, one.data());
      draw_anywhere(random, first, count, other.data());
      require(one == other, "both ways of drawing");
    }
  }
}

void sums() {
  for (const std::size_t group : {32, 64, 96, 224, 512, 32 * 37}) {
    const std::vector<float> numbers = normal(3 * group);
    for (const Of of : {Of::kSquares, Of::kSizes, Of::kNegatives, Of::kPositives}) {
      std::vector<float> found(3);
      group_sums(numbers.data(), numbers.size(), group, of, found.data());
      for (std::size_t g = 0; g < 3; ++g) {
        double total = 0, sizes = 0;
        for (std::size_t i = g * group; i < (g + 1) * group; ++i) {
          const double x = numbers[i];
          const double taken = of == Of::kSquares                       ? x * x
                               : of == Of::kSizes                      ? std::fabs(x)
                               : (x < 0) == (of == Of::kNegatives) ? x
                                                                       : 0;
          total += taken;
          sizes += std::fabs(taken);
        }
        require(std::fabs(found[g] - total) <= 1e-6 * sizes, "the sum of a group of " + std::to_string(group));
      }
    }
    std::vector<float> most(3);
    group_largest(numbers.data(), numbers.size(), group, most.data());
    const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    require(most[0] == std::fabs(*std::max_element(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(group), smaller)),
            "the largest of a group");
  }
}

void levels() {
  const Philox random{{3, 5}, {7, 11}};
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t group : {32, 224, 512}) {
    const std::size_t count = 5 * group;
    std::vector<float> numbers = normal(count), scales(5), back(count);
    numbers[1] = std::nanf("");
    numbers[2] = -infinity;
    numbers[3] = std::numeric_limits<float>::denorm_min();
    for (std::size_t g = 0; g < 5; ++g) scales[g] = 4;
    for (const int bits : {2, 4, 8}) {
      const float step = 4.0f / static_cast<float>((1 << (bits - 1)) - 1);
      std::vector<std::uint32_t> words(count / 32 * static_cast<std::size_t>(bits));
      to_levels(bits, numbers.data(), count, group, scales.data(), random, 64, words.data());
      from_levels(bits, words.data(), count, group, scales.data(), back.data());
      require(back[1] == 0 && back[2] == -4, "levels of what is no number");
      for (std::size_t i = 4; i < count; ++i) {
        require(std::fabs(back[i] - numbers[i]) <= 1.0001f * step || std::fabs(numbers[i]) > 4, "a level of " + std::to_string(bits));
      }
    }
    std::vector<std::uint32_t> signs(count / 32), exponents(count / 4);
    std::vector<float> low(5, -1), high(5, 2);
    to_signs(numbers.data(), count, signs.data());
    from_signs(signs.data(), count, group, low.data(), high.data(), back.data());
    for (std::size_t i = 0; i < count; ++i) require(back[i] == (std::signbit(numbers[i]) ? -1 : 2), "a sign");
    to_powers(numbers.data(), count, random, 64, exponents.data(), signs.data());
    from_powers(exponents.data(), signs.data(), count, back.data());
    for (std::size_t i = 4; i < count; ++i) {
      const float part = back[i] / numbers[i];
      require(part > 0.5f && part <= 2 && (bits_of(back[i]) & ((1u << kMantissa) - 1)) == 0, "a power of two");
    }
  }
}

void selection() {
  for (const std::size_t count : {1u, 2u, 31u, 997u, 70001u}) {
    for (const int kinds : {0, 1, 5, 1000}) {  // of different sizes; 0: any
      std::vector<float> row = normal(count);
      if (kinds > 0) for (float& x : row) x = std::trunc(x * static_cast<float>(kinds)) * 0.5f;
      for (const std::size_t k : {std::size_t{1}, count / 1000, count / 100, count / 3, count - 1, count}) {
        if (k < 1 || k > count) continue;
        std::vector<std::int32_t> places(k), sorted(count);
        largest(row.data(), count, k, places.data());
        std::iota(sorted.begin(), sorted.end(), 0);
        std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return std::fabs(row[a]) > std::fabs(row[b]); });
        sorted.resize(k);
        std::sort(sorted.begin(), sorted.end());
        require(places == sorted, std::to_string(k) + " of " + std::to_string(count));
      }
    }
  }
  // What a sample cannot see: all that is large lies next to each other.
  std::vector<float> row(200000, 1e-3f);
  for (std::size_t i = 100; i < 1100; ++i) row[i] = static_cast<float>(i);
  std::vector<std::int32_t> places(1000), expected(1000);
  std::iota(expected.begin(), expected.end(), 100);
  largest(row.data(), row.size(), 1000, places.data());
  require(places == expected, "those next to each other");
}

}  // namespace

int main() {
  drawn();
  sums();
  levels();
  selection();
  if (wrong == 0) std::puts("codecs: ok");
  return wrong == 0 ? 0 : 1;
}

// The largest numbers of a row, found without sorting it.
//
// A sample says beyond which size somewhat more than k numbers are. One pass over the row gathers those, and only they are
// looked at closely. What the sample says may be wrong: then there are too many, which costs time, or too few, and a
// smaller size is taken. What is returned never depends on it.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "floats.h"
#include "kernels.h"
#include "packing.h"
#include "vectorized.h"

namespace tfdist::codecs {
namespace {

constexpr std::size_t kSample = 32768;
constexpr std::int32_t kAll = -1;  // below every size

// The bits of |x|, signed, which every processor compares.
TFDIST_PART_OF_VECTORIZED std::int32_t size_of(float number) { return static_cast<std::int32_t>(bits_of(number) & kSize); }

struct Found {
  std::vector<std::int32_t> sizes, places;  // in the order of places
};

// Sizes of one number of each of kSample stretches, the largest first.
std::vector<std::int32_t> sample(const float* row, std::size_t count) {
  std::vector<std::int32_t> sizes;
  const std::size_t stretch = count / kSample;
  for (std::size_t i = 0; i < kSample && stretch > 1; ++i) {
    const std::size_t within = ((i * 2654435761u) >> 7) % stretch;  // not always the same column of a matrix
    sizes.push_back(size_of(row[i * stretch + within]));
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return sizes;
}

// Adds those of up to kBlock numbers that are larger.
TFDIST_PART_OF_VECTORIZED std::size_t add(const float* row, std::size_t begin, std::size_t end, std::int32_t than,
                                          std::int32_t* sizes, std::int32_t* places) {
  std::size_t added = 0;
  for (std::size_t i = begin; i < end; ++i) {
    sizes[added] = size_of(row[i]);
    places[added] = static_cast<std::int32_t>(i);
    added += sizes[added] > than;
  }
  return added;
}

TFDIST_VECTORIZED void find_larger(const float* row, std::size_t count, std::int32_t than, Found* found) {
  std::size_t size = 0;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, count);
    if (end - begin == kBlock) {
      std::int32_t most = 0;
      for (int i = 0; i < kBlock; ++i) most = std::max(most, size_of(row[begin + static_cast<std::size_t>(i)]));
      if (most <= than) continue;
    }
    if (found->sizes.size() < size + kBlock) {
      found->sizes.resize(2 * size + kBlock);
      found->places.resize(2 * size + kBlock);
    }
    size += add(row, begin, end, than, found->sizes.data() + size, found->places.data() + size);
  }
  found->sizes.resize(size);
  found->places.resize(size);
}

}  // namespace

void largest(const float* row, std::size_t count, std::size_t k, std::int32_t* places) {
  const std::vector<std::int32_t> sizes = sample(row, count);
  const double expected = static_cast<double>(k) / static_cast<double>(count) * static_cast<double>(sizes.size());
  auto rank = static_cast<std::size_t>(expected + 4.0 * std::sqrt(expected) + 4.0);
  Found found;
  std::int32_t than = kAll;
  std::size_t equal = 0;  // to `than`
  for (;; rank *= 2) {
    than = rank < sizes.size() ? sizes[rank] : kAll;
    find_larger(row, count, than, &found);
    if (found.sizes.size() >= k) break;
    equal = static_cast<std::size_t>(std::count_if(row, row + count, [than](float x) { return size_of(x) == than; }));
    if (found.sizes.size() + equal >= k) break;
  }
  if (found.sizes.size() < k) {  // all of them, and the first of many equal ones
    std::size_t ties = k - found.sizes.size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t size = size_of(row[i]);
      if (size > than || (size == than && ties > 0 && ties--)) *places++ = static_cast<std::int32_t>(i);
    }
    return;
  }
  std::vector<std::int32_t> ordered = found.sizes;
  const auto last = ordered.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(ordered.begin(), last, ordered.end(), std::greater<>());
  const std::int32_t least = *last;
  auto ties = k - static_cast<std::size_t>(std::count_if(ordered.begin(), last, [least](auto x) { return x > least; }));
  for (std::size_t i = 0; i < found.sizes.size(); ++i) {
    const std::int32_t size = found.sizes[i];
    if (size > least || (size == least && ties > 0 && ties--)) *places++ = found.places[i];
  }
}

}  // namespace tfdist::codecs

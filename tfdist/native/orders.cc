// Orders of examples, computed as tfdist/data/order computes them in NumPy, which says what they are. Python gives the
// arrays and the keys; nothing here depends on TensorFlow.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "networks.h"

namespace tfdist {
namespace {

template <size_t kBytes>
TFDIST_NETWORK_PART bool PermuteAll(const Network& of, const int64_t* positions, int64_t count, int64_t* into) {
  Halves halves;
  for (int64_t begin = 0; begin < count; begin += static_cast<int64_t>(kValues)) {
    const size_t here = static_cast<size_t>(std::min<int64_t>(count - begin, kValues));
    uint64_t largest = 0;
    for (size_t i = 0; i < here; ++i) {
      const uint64_t value = static_cast<uint64_t>(positions[begin + static_cast<int64_t>(i)]);
      largest = std::max(largest, value);
      halves.Set(i, value, of);
    }
    if (largest >= of.size) return false;
    int64_t* found = into + begin;
    Permute<kBytes>(of, halves, here, [&](uint32_t place, int64_t value) { found[place] = value; });
  }
  return true;
}

// A window of a mixture: the source of each position follows from the spread order of the values below its size.
struct Window {
  const uint16_t* spread;  // of all values below 2^bits
  int64_t bits;
  int64_t places, values;  // digits that are flipped
  int64_t size;
  int64_t skip, count;     // which of its positions are asked for
};

// The sources of a mixture: for each, the number of its first example and the number of its examples; and the laps of
// its order that are needed, those of a source one after another.
struct Sources {
  int64_t count;
  const int64_t* firsts;
  const int64_t* sizes;
  const int64_t* begins;    // of its laps in the arrays below, and then the number of all
  const int64_t* numbers;   // of its first lap in them
  const uint32_t* keys;     // [laps, kRounds]
  const int64_t* const* tables;  // of a lap whose values are listed; null if a network computes them
};

struct Mixture {
  const Window* windows;
  int64_t count;       // of windows
  const int64_t* met;  // [windows + 1, sources]: how often each source comes before a window
  Sources sources;
  int64_t* into;
};

// Lists the places of the result that each source has, in order, and how many of its turns are skipped before them.
template <typename Kind>
bool Lay(const Mixture& of, std::vector<uint32_t>& listed, std::vector<int64_t>& ends, std::vector<int64_t>& skipped) {
  const int64_t sources = of.sources.count;
  int64_t total = 0;
  for (int64_t source = 0; source < sources; ++source) {
    const int64_t turns = of.met[of.count * sources + source] - of.met[source];
    if (turns < 0) return false;
    ends[source] = total;  // of what is listed so far
    total += turns;
  }
  listed.resize(static_cast<size_t>(total));
  std::vector<int64_t> begins(ends);
  std::vector<Kind> kinds;
  int64_t place = 0;
  for (int64_t number = 0; number < of.count; ++number) {
    const Window& window = of.windows[number];
    const int64_t* before = of.met + number * sources;
    kinds.clear();
    for (int64_t source = 0; source < sources; ++source) {
      const int64_t turns = before[sources + source] - before[source];
      if (turns < 0 || turns > window.size) return false;
      kinds.insert(kinds.end(), static_cast<size_t>(turns), static_cast<Kind>(source));
    }
    const int64_t all = int64_t{1} << window.bits;
    if (static_cast<int64_t>(kinds.size()) != window.size || window.size > all) return false;
    int64_t at = 0;
    const int64_t last = window.skip + window.count;
    for (int64_t i = 0; i < all && at < last; ++i) {
      const int64_t value = window.spread[i ^ window.places] ^ window.values;
      if (value >= window.size) continue;
      const size_t kind = kinds[static_cast<size_t>(value)];
      if (at >= window.skip) {
        listed[static_cast<size_t>(ends[kind]++)] = static_cast<uint32_t>(place++);
      } else {
        ++skipped[kind];
      }
      ++at;
    }
  }
  return true;
}

template <size_t kBytes>
TFDIST_NETWORK_PART bool Mix(const Mixture& of) {
  const Sources& sources = of.sources;
  const size_t count = static_cast<size_t>(sources.count);
  std::vector<uint32_t> listed;
  std::vector<int64_t> ends(count), skipped(count);
  const bool is_laid = count <= 256 ? Lay<uint8_t>(of, listed, ends, skipped) : Lay<uint32_t>(of, listed, ends, skipped);
  if (!is_laid) return false;
  Halves halves;
  int64_t begin = 0;
  for (size_t source = 0; source < count; ++source) {
    const int64_t size = sources.sizes[source], first = sources.firsts[source];
    int64_t turn = of.met[source] + skipped[source];
    const uint32_t* places = listed.data() + begin;
    const uint32_t* end = listed.data() + ends[source];
    begin += of.met[static_cast<size_t>(of.count) * count + source] - of.met[source];
    while (places < end) {
      if (size < 1) return false;
      const int64_t lap = sources.begins[source] + turn / size - sources.numbers[source], inside = turn % size;
      if (lap < sources.begins[source] || lap >= sources.begins[source + 1]) return false;
      const int64_t here = std::min<int64_t>({end - places, size - inside, static_cast<int64_t>(kValues)});
      if (const int64_t* table = sources.tables[lap]) {
        for (int64_t i = 0; i < here; ++i) of.into[places[i]] = first + table[inside + i];
      } else {
        const Network network(sources.keys + lap * kRounds, size);
        for (int64_t i = 0; i < here; ++i) {
          halves.Set(static_cast<size_t>(i), static_cast<uint64_t>(inside + i), network);
        }
        Permute<kBytes>(network, halves, static_cast<size_t>(here),
                        [&](uint32_t place, int64_t value) { of.into[places[place]] = first + value; });
      }
      places += here;
      turn += here;
    }
  }
  return true;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) bool PermuteWithAvx2(const Network& of, const int64_t* positions, int64_t count,
                                                     int64_t* into) {
  return PermuteAll<32>(of, positions, count, into);
}

__attribute__((target("avx2"))) bool MixWithAvx2(const Mixture& of) { return Mix<32>(of); }

bool HasAvx2() { return __builtin_cpu_supports("avx2"); }
#endif

}  // namespace
}  // namespace tfdist

#define TFDIST_EXPORT __attribute__((visibility("default")))

// `portable`: only instructions that all processors of this architecture have. A result is unusable if false or less is
// returned.
extern "C" {

// Returns false if a position is outside.
TFDIST_EXPORT bool tfdist_permute(const uint32_t* keys, int64_t size, const int64_t* positions, int64_t count,
                                  int64_t* into, bool portable) {
  if (size < 1) return false;
  const tfdist::Network network(keys, size);
#if defined(__x86_64__)
  if (!portable && tfdist::HasAvx2()) return tfdist::PermuteWithAvx2(network, positions, count, into);
#endif
  static_cast<void>(portable);
  return tfdist::PermuteAll<16>(network, positions, count, into);
}

// Returns 0 if arguments do not fit each other, and -1 if there is no memory.
TFDIST_EXPORT int tfdist_mix(const tfdist::Window* windows, int64_t count, const int64_t* met, int64_t sources,
                              const int64_t* firsts, const int64_t* sizes, const int64_t* begins,
                              const int64_t* numbers, const uint32_t* keys, const int64_t* const* tables,
                              int64_t* into, bool portable) {
  const tfdist::Mixture mixture{windows, count, met, {sources, firsts, sizes, begins, numbers, keys, tables}, into};
  try {
#if defined(__x86_64__)
    if (!portable && tfdist::HasAvx2()) return tfdist::MixWithAvx2(mixture);
#endif
    static_cast<void>(portable);
    return tfdist::Mix<16>(mixture);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}

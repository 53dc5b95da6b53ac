// The sum of an array over processes of one host, as plainly as it can be written: the limit beside which
// `tfdist bench all-reduce` shows what an all-reduce takes. No threads, no keys, no dtypes, nobody who may be late.
//
// It makes the passes over memory that any sum through shared memory makes: each process copies, chunk by chunk, what others add up
// into a slot, adds up its own part of a chunk, and copies the parts that others have added up.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSlots = 4;
constexpr std::size_t kChunk = 64 * 1024;  // numbers: a slot for each of two processes stays in a cache
constexpr std::size_t kBlock = 1024;       // numbers that are copied while they are in the first cache
constexpr std::size_t kLineNumbers = kLine / sizeof(float);
constexpr int kSpins = 2000;  // before the processor is given to others
constexpr std::chrono::seconds kLongest{60};

// How many chunks a process has gone through, each counter in a line of its own. All begin as 0.
struct Counter {
  alignas(kLine) std::atomic<std::uint64_t> chunks;
};
struct Progress {
  Counter published, added, done;
};

bool wait_for(const Counter& counter, std::uint64_t chunks) {
  for (int looks = 0; counter.chunks.load(std::memory_order_acquire) < chunks; ++looks) {
    if (looks < kSpins) continue;
    static thread_local std::chrono::steady_clock::time_point since;
    if (looks == kSpins) since = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - since > kLongest) return false;
    sched_yield();
  }
  return true;
}

bool wait_for_all(const Progress* progress, std::size_t members, Counter Progress::*counter, std::uint64_t chunks) {
  for (std::size_t i = 0; i < members; ++i) {
    if (!wait_for(progress[i].*counter, chunks)) return false;
  }
  return true;
}

// `into` may be `one`.
void add(float* into, const float* one, const float* other, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; ++at) into[at] = one[at] + other[at];
}

}  // namespace

#define TFDIST_EXPORT __attribute__((visibility("default")))
extern "C" {

// Bytes of memory that so many processes share; they begin as zeros.
TFDIST_EXPORT std::size_t tfdist_bare_bytes(std::size_t members) {
  return members * (sizeof(Progress) + kSlots * kChunk * sizeof(float));
}

// Adds up the numbers of all members, in place and in the order of members. False if another one is not there for a minute.
TFDIST_EXPORT bool tfdist_bare_sum(char* memory, std::size_t me, std::size_t members, float* numbers, std::size_t count) {
  auto* const progress = reinterpret_cast<Progress*>(memory);
  auto* const slots = reinterpret_cast<float*>(memory + members * sizeof(Progress));
  Progress& mine = progress[me];
  const std::uint64_t before = mine.done.chunks.load(std::memory_order_relaxed), chunks = (count + kChunk - 1) / kChunk;
  const auto slot = [&](std::size_t member, std::uint64_t chunk) {
    return slots + (member * kSlots + (before + chunk) % kSlots) * kChunk;
  };
  // The part of a chunk that a member adds up: whole lines.
  const auto part = [&](std::uint64_t chunk, std::size_t member) {
    const std::size_t all = std::min(kChunk, count - chunk * kChunk);
    const std::size_t each = ((all + members - 1) / members + kLineNumbers - 1) / kLineNumbers * kLineNumbers;
    return std::pair{std::min(all, each * member), std::min(all, each * (member + 1))};
  };
  for (std::uint64_t step = 0; step < chunks + 2; ++step) {  // what lies between the three is done by others meanwhile
    if (const std::uint64_t chunk = step; chunk < chunks) {
      const std::uint64_t used = before + chunk + 1;
      if (used > kSlots && !wait_for_all(progress, members, &Progress::done, used - kSlots)) return false;
      const float* own = numbers + chunk * kChunk;
      for (std::size_t i = 0; i < members; ++i) {
        const auto [first, last] = part(chunk, i);
        if (i != me) std::memcpy(slot(me, chunk) + first, own + first, (last - first) * sizeof(float));
      }
      mine.published.chunks.store(before + chunk + 1, std::memory_order_release);
    }
    if (const std::uint64_t chunk = step - 1; step >= 1 && chunk < chunks) {
      if (!wait_for_all(progress, members, &Progress::published, before + chunk + 1)) return false;
      const auto [first, last] = part(chunk, me);
      float *own = numbers + chunk * kChunk, *sums = slot(me, chunk);
      const auto from = [&](std::size_t i) { return i == me ? own : slot(i, chunk); };
      for (std::size_t begin = first; begin < last; begin += kBlock) {
        const std::size_t end = std::min(last, begin + kBlock);
        add(sums, from(0), from(1), begin, end);
        for (std::size_t i = 2; i < members; ++i) add(sums, sums, from(i), begin, end);
        std::memcpy(own + begin, sums + begin, (end - begin) * sizeof(float));
      }
      mine.added.chunks.store(before + chunk + 1, std::memory_order_release);
    }
    if (const std::uint64_t chunk = step - 2; step >= 2) {
      if (!wait_for_all(progress, members, &Progress::added, before + chunk + 1)) return false;
      for (std::size_t i = 0; i < members; ++i) {
        const auto [first, last] = part(chunk, i);
        if (i != me) std::memcpy(numbers + chunk * kChunk + first, slot(i, chunk) + first, (last - first) * sizeof(float));
      }
      mine.done.chunks.store(before + chunk + 1, std::memory_order_release);
    }
  }
  return true;
}
}

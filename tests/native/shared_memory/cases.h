// Operations with what comes out of them, and members that run them.

#ifndef TFDIST_TESTS_NATIVE_SHARED_MEMORY_CASES_H_
#define TFDIST_TESTS_NATIVE_SHARED_MEMORY_CASES_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "../../../tfdist/native/collectives/engine.h"

namespace tfdist::collectives::checks {

using Clock = std::chrono::steady_clock;

inline std::atomic<int> wrong{0};

inline void complain(const std::string& what) {
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

inline double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Waits for operations that were submitted to an engine.
class Results {
 public:
  Engine::Done next() {
    const std::lock_guard<std::mutex> guard(mutex_);
    ++open_;
    return [this](const std::string& error) {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (error_.empty()) error_ = error;
      --open_;
      changed_.notify_all();
    };
  }

  std::string wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return open_ == 0; })) {
      std::fprintf(stderr, "wrong: an operation hangs\n");
      std::_Exit(3);
    }
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
  std::string error_;
};

inline float value(int rank, std::size_t i, std::uint64_t key) { return static_cast<float>((i * 7 + key + 3 * rank) % 64); }

// One operation with what comes out of it.

// One operation with what comes out of it.
struct Case {
  std::vector<int> ranks;
  std::uint64_t key;
  int kind;
  std::size_t count;
  std::vector<float> in, out;
  std::vector<float> wanted;

  std::unique_ptr<Operation> far(Engine& engine);

  Case(std::vector<int> group, int rank, std::uint64_t key, int kind, std::size_t count)
      : ranks(std::move(group)), key(key), kind(kind), count(count) {
    const std::size_t n = ranks.size();
    const std::size_t me = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    const auto rows = [&](std::size_t member) { return kind == 2 ? count * (member + 1) / n : count; };
    for (std::size_t i = 0; i < rows(me); ++i) in.push_back(value(ranks[me], i, key));
    const auto sum = [&](std::size_t i) {
      float total = 0;
      for (const int other : ranks) total += value(other, i, key);
      return total;
    };
    const std::size_t begin = count * me / n, end = count * (me + 1) / n;
    if (kind == 0) {
      for (std::size_t i = 0; i < count; ++i) wanted.push_back(sum(i));
    } else if (kind == 1) {
      for (std::size_t i = begin; i < end; ++i) wanted.push_back(sum(i));
    } else if (kind == 2) {
      for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < rows(r); ++i) wanted.push_back(value(ranks[r], i, key));
      }
    } else if (kind == 3) {
      for (std::size_t i = 0; i < count; ++i) wanted.push_back(value(ranks[key % n], i, key));
    } else if (kind == 4) {
      for (const int other : ranks) {
        for (std::size_t i = begin; i < end; ++i) wanted.push_back(value(other, i, key));
      }
    } else {
      for (const int other : ranks) {
        for (std::size_t i = 0; i < count; ++i) wanted.push_back(value(other, i, key));
      }
    }
    out.resize(wanted.size());
  }

  std::unique_ptr<Operation> operation(Engine& engine) {
    if (!engine.are_near(ranks)) return far(engine);
    Place place = engine.place(ranks);
    const std::uint64_t id = engine.next_id(key);
    char* from = reinterpret_cast<char*>(in.data());
    char* into = reinterpret_cast<char*>(out.data());
    std::vector<std::size_t> begins;
    for (std::size_t r = 0; r <= ranks.size(); ++r) begins.push_back(count * r / ranks.size() * 4);
    if (kind == 0) {
      const std::size_t half = count / 2 * 4;
      std::vector<Piece> pieces = {{from, into, half}, {from + half, into + half, count * 4 - half}};
      return shared_all_reduce(place, id, pieces, DType::kFloat32, Op::kSum);
    }
    if (kind == 1) return shared_reduce_scatter(place, id, from, into, begins, DType::kFloat32, Op::kSum);
    if (kind == 2 || kind == 5) {
      return shared_all_gather(place, id, from, in.size(), 4, [this](std::uint64_t rows) {
        if (rows != out.size()) complain("the rows of an all_gather");
        return reinterpret_cast<char*>(out.data());
      });
    }
    if (kind == 3) return shared_broadcast(place, id, from, into, count * 4, key % ranks.size());
    return shared_all_to_all(place, id, from, into, begins);
  }
};

inline std::vector<std::vector<int>> groups_of(int members) {
  std::vector<std::vector<int>> groups(1);
  for (int i = 0; i < members; ++i) groups[0].push_back(i);
  for (int i = 0; members > 2 && i < members; ++i) groups.push_back({std::min(i, (i + 1) % members), std::max(i, (i + 1) % members)});
  return groups;
}

// Runs rounds of operations, in each round all at once, in an order of this member's own.
void run_cases(Engine& engine, int members, int rounds, std::size_t largest);

}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_SHARED_MEMORY_CASES_H_

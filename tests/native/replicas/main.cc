// Checks operations among replicas of one process by themselves, without TensorFlow, for sanitizers: `replicas`.
//
//   operations  replicas are threads that begin a hundred operations of every kind in orders of their own
//   withdrawn   some are broken off while others arrive: each ends once, and what comes later meets as if nothing had been
//   ended       what waits when somebody gives up ends, and so does what comes later
//
// It ends with 0 if everything was right, and says what was not.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../../tfdist/native/collectives/replicas.h"

namespace {

using namespace tfdist::collectives;

std::atomic<int> wrong{0};

void complain(const std::string& what) {
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

// Waits for what was begun.
class Open {
 public:
  void add() {
    const std::lock_guard<std::mutex> guard(mutex_);
    ++count_;
  }
  void end() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (--count_ == 0) changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::seconds(60), [this] { return count_ == 0; })) return;
    std::fprintf(stderr, "wrong: an operation hangs\n");
    std::_Exit(3);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

float value(int rank, std::size_t i, std::uint64_t key) { return static_cast<float>((i * 7 + key + 3 * rank) % 64); }

// One replica's part of an operation, and what is to come out of it.
struct Case {
  std::vector<float> in, out, wanted;
  bool in_place = false;
  Share share;

  Case(const std::vector<int>& ranks, std::size_t me, std::uint64_t key, What what, std::size_t count) {
    share.what = what;
    const std::size_t n = ranks.size();
    const std::size_t rows = what == What::kAllGather ? count * (me + 1) / n : count;
    const std::size_t begin = count * me / n, end = count * (me + 1) / n;
    const auto sum = [&](std::size_t i) {
      float total = 0;
      for (const int rank : ranks) total += value(rank, i, key);
      return total;
    };
    for (std::size_t i = 0; i < rows; ++i) in.push_back(value(ranks[me], i, key));
    share.dtype = DType::kFloat32;
    share.root = key % n;
    for (std::size_t i = 0; i <= n; ++i) share.begins.push_back(count * i / n * sizeof(float));
    if (what == What::kAllReduce) {
      for (std::size_t i = 0; i < count; ++i) wanted.push_back(sum(i));
    } else if (what == What::kReduceScatter) {
      for (std::size_t i = begin; i < end; ++i) wanted.push_back(sum(i));
    } else if (what == What::kAllToAll) {
      for (const int rank : ranks) {
        for (std::size_t i = begin; i < end; ++i) wanted.push_back(value(rank, i, key));
      }
    } else if (what == What::kAllGather) {
      for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < count * (r + 1) / n; ++i) wanted.push_back(value(ranks[r], i, key));
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) wanted.push_back(value(ranks[share.root], i, key));
    }
    const std::size_t bytes = rows * sizeof(float), half = rows / 2 * sizeof(float);
    char* from = reinterpret_cast<char*>(in.data());
    if (what == What::kAllGather) {
      share.rows = rows;
      share.row_bytes = sizeof(float);
      share.pieces = {{from, nullptr, bytes}};
      share.allocate = [this](std::uint64_t total) {
        out.resize(total);
        return reinterpret_cast<char*>(out.data());
      };
    } else if (what == What::kAllReduce && key % 2 == 0) {  // in place, in two pieces
      in_place = true;
      share.pieces = {{from, from, half}, {from + half, from + half, bytes - half}};
    } else {
      out.resize(wanted.size());
      share.pieces = {{from, reinterpret_cast<char*>(out.data()), bytes}};
    }
  }
  Case(const Case&) = delete;

  bool right() const { return (in_place ? in : out) == wanted; }
};

constexpr int kReplicas = 3;
constexpr What kKinds[] = {What::kAllReduce, What::kReduceScatter, What::kAllToAll, What::kAllGather, What::kBroadcast};

void operations() {
  const auto all = std::make_shared<Replicas>();
  const std::vector<std::vector<int>> groups = {{0, 1, 2}, {0, 2}, {1, 2}};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kReplicas; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<std::uint64_t> keys(100);
      for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
      std::shuffle(keys.begin(), keys.end(), std::mt19937(rank));
      std::vector<std::unique_ptr<Case>> cases;
      Open open;
      for (const std::uint64_t key : keys) {
        const std::vector<int>& ranks = groups[key % groups.size()];
        const auto at = std::find(ranks.begin(), ranks.end(), rank);
        if (at == ranks.end()) continue;
        const std::size_t count = key % 7 == 0 ? 300000 : key % 11;
        cases.push_back(std::make_unique<Case>(ranks, at - ranks.begin(), key, kKinds[key % 5], count));
        Share share = cases.back()->share;
        open.add();
        share.done = [&open](const std::string& error) {
          if (!error.empty()) complain(error);
          open.end();
        };
        all->meet(key, ranks, at - ranks.begin(), std::move(share));
      }
      open.wait();
      for (const auto& one : cases) {
        if (!one->right()) complain("a result of replica " + std::to_string(rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A step that can be broken off, as TensorFlow's are.
class Step {
 public:
  bool watch(std::function<void()> call) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!broken_off_) calls_.push_back(std::move(call));
    return !broken_off_;
  }
  void break_off() {
    std::vector<std::function<void()>> calls;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      broken_off_ = true;
      calls.swap(calls_);
    }
    for (const auto& call : calls) call();
  }

 private:
  std::mutex mutex_;
  bool broken_off_ = false;
  std::vector<std::function<void()>> calls_;
};

void withdrawn() {
  const auto all = std::make_shared<Replicas>();
  const std::vector<int> ranks = {0, 1, 2};
  for (int turn = 0; turn < 200; ++turn) {
    Step step;
    Open open;
    std::atomic<int> done{0}, broken_off{0};
    std::vector<std::unique_ptr<Case>> cases;
    for (int rank = 0; rank < kReplicas; ++rank) {
      cases.push_back(std::make_unique<Case>(ranks, rank, 1, What::kAllReduce, 5000));
    }
    const bool fails = turn % 2 == 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kReplicas; ++rank) {
      open.add();
      threads.emplace_back([&, rank] {
        Share share = cases[rank]->share;
        share.watch = [&step](std::function<void()> call) { return step.watch(std::move(call)); };
        share.done = [&](const std::string& error) {
          ++(error.empty() ? done : broken_off);
          if (!error.empty() && error.rfind(kWithdrawn, 0) != 0) complain(error);
          open.end();
        };
        if (fails && rank == turn % kReplicas) {
          step.break_off();
        }
        all->meet(1, ranks, rank, std::move(share));
      });
    }
    for (std::thread& thread : threads) thread.join();
    open.wait();
    if (fails ? broken_off == 0 : done != kReplicas) complain("turn " + std::to_string(turn));
    if (done != 0 && done != kReplicas) complain("some are done and some are not");
    for (const auto& one : cases) {
      if (done == kReplicas && !one->right()) complain("a sum after steps that were broken off");
    }
  }
}

void ended() {
  const auto all = std::make_shared<Replicas>();
  std::vector<std::string> errors;
  Case one({0, 1}, 0, 1, What::kAllReduce, 10), other({0, 1}, 1, 1, What::kAllReduce, 11), late({0, 1}, 1, 1, What::kBroadcast, 1);
  for (Case* each : {&one, &other, &late}) {
    each->share.done = [&errors](const std::string& error) { errors.push_back(error); };
  }
  all->meet(1, {0, 1}, 0, one.share);
  all->meet(1, {0, 1}, 1, other.share);
  if (errors.size() != 2 || errors[0].find("all_reduce (sum, float32) of 44 bytes") == std::string::npos) complain("a difference");
  all->meet(1, {0, 1}, 0, one.share);
  all->abort("on purpose");
  all->meet(1, {0, 1}, 1, late.share);
  for (std::size_t i = 2; i < 4; ++i) {
    if (errors.size() != 4 || errors[i].find("on purpose") == std::string::npos) complain("an end");
  }
}

}  // namespace

int main() {
  operations();
  withdrawn();
  ended();
  return wrong == 0 ? 0 : 1;
}

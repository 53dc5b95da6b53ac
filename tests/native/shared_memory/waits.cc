// Members that live, and do not come to an operation, or come to another one: all are told, and who it was.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "engines.h"
#include "parts.h"

namespace tfdist::collectives::checks {
namespace {

// What becomes of an operation of this member.
std::string outcome(Engine& engine, Case one) {
  Results results;
  engine.submit(one.operation(engine), one.ranks, results.next());
  return results.wait();
}

// Counts members that are done. Who waits for some of them takes no time from those.
class Done {
 public:
  void add() {
    const std::lock_guard<std::mutex> held(lock_);
    ++count_;
    changed_.notify_all();
  }

  void wait_for(int members) {
    std::unique_lock<std::mutex> held(lock_);
    changed_.wait(held, [&] { return count_ >= members; });
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int count_ = 0;
};

// One of three members does not come. The others, and the one when it comes, get the same error.
void check_late(int hosts) {
  Done done;
  with_engines(3, hosts, Engine::Options{20, 2.5}, [&](Engine& engine) {
    const Case sum({0, 1, 2}, engine.rank(), 5, 0, 300);
    const int rank = engine.rank();
    if (rank == 1) done.wait_for(2);
    const std::string error = outcome(engine, sum);
    done.add();
    const bool names = has(error, "all_reduce (sum, float32) of 1200 bytes is not done within 2.5 s: waiting for member 1");
    if (!names || has(error, ", member")) {
      complain("one that does not come, member " + std::to_string(rank) + ": " + error);
    }
    done.wait_for(3);
  });
}

// Two operations under one key, of which some send nothing to each other, or are done before the other begins.
void check_different(int hosts, int members, int first, int second, std::size_t first_count, std::size_t second_count) {
  Done done;
  std::vector<std::string> errors(members);
  with_engines(members, hosts, Engine::Options{20, 30}, [&](Engine& engine) {
    const int rank = engine.rank();
    std::vector<int> all = groups_of(members)[0];
    const bool is_first = rank < members - 1;
    errors[rank] = outcome(engine, Case(all, rank, 4, is_first ? first : second, is_first ? first_count : second_count));
    // One that was done at once is told by its next operation.
    if (errors[rank].empty()) errors[rank] = outcome(engine, Case(all, rank, 5, 0, 10));
    done.add();
    done.wait_for(members);
  });
  for (const std::string& error : errors) {
    if (has(error, "Members do different things: member ") && has(error, " runs ")) continue;
    complain("different operations " + std::to_string(first) + " and " + std::to_string(second) + " of " +
             std::to_string(members) + " on " + std::to_string(hosts) + " hosts: " + error);
  }
}

// Always has something to move, until its member has shown three times that it lives; or for ten seconds.
class Busy final : public Operation {
 public:
  explicit Busy(const Counter& heartbeat) : heartbeat_(heartbeat), first_(heartbeat) {}

 private:
  using Clock = std::chrono::steady_clock;

  bool move() override {
    if (heartbeat_ >= first_ + 3) finish();
    else if (Clock::now() > end_) fail("it has shown no life for ten seconds");
    return true;
  }

  const Counter& heartbeat_;
  const std::uint64_t first_;
  const Clock::time_point end_ = Clock::now() + std::chrono::seconds(10);
};

// A member shows that it lives while it has something to move without a pause.
void check_busy() {
  with_engines(2, 2, Engine::Options{}, [](Engine& engine) {
    Results results;
    const auto near = engine.place({engine.rank()});
    engine.submit(std::make_unique<Busy>(near.segment->member(0).heartbeat), {0, 1}, results.next());
    const std::string error = results.wait();
    if (!error.empty()) complain("busy without a pause: " + error);
  });
}

}  // namespace

void waits(int) {
  check_busy();
  for (const int hosts : {1, 2, 3}) {
    check_late(hosts);
    check_different(hosts, 3, 0, 0, 100, 101);   // sums of other sizes
    check_different(hosts, 3, 0, 3, 100, 100);   // a sum, and a broadcast whose root is another member
    check_different(hosts, 3, 3, 0, 100, 100);   // the root of a broadcast needs nobody
    check_different(hosts, 3, 2, 4, 30000, 30000);
  }
  check_different(2, 4, 0, 1, 100, 100);  // on hosts that would add up in two levels
}

}  // namespace tfdist::collectives::checks

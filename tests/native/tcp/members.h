// The members of a job over TCP, each in a thread, and what is wrong.

#ifndef TFDIST_TESTS_NATIVE_TCP_MEMBERS_H_
#define TFDIST_TESTS_NATIVE_TCP_MEMBERS_H_

#include <poll.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../../tfdist/native/collectives/tcp.h"

namespace tfdist::collectives::checks {

inline const std::string kKey = "0123456789abcdef";
inline const std::vector<Algorithm> kAlgorithms = {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRing,
                                                   Algorithm::kHalvingDoubling, Algorithm::kDoubleTree,
                                                   Algorithm::kTwoShotAround};
inline std::atomic<int> wrong{0};

inline void require(bool is_right, const std::string& what) {
  if (is_right) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline double seconds_since(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

// The listening sockets of all members, and what each has to know.
struct Job {
  std::vector<Descriptor> listeners;
  std::vector<Address> addresses;
  std::uint64_t generation = 1;
  std::string key = kKey;
  double join_seconds = 20;

  explicit Job(int members, const std::string& host = "127.0.0.1", const std::vector<Address>& taken = {}) {
    for (int rank = 0; rank < members; ++rank) {
      std::string error;
      const std::uint16_t port = taken.empty() ? std::uint16_t{0} : taken[rank].port;
      listeners.push_back(listen_on({host, port}, &error));
      require(static_cast<bool>(listeners.back()), "a port to listen on: " + error);
      addresses.push_back({host, port_of(listeners.back())});
    }
  }

  Membership membership(int rank) const {
    Membership membership;
    membership.rank = rank;
    membership.members = addresses;
    membership.key = key;
    membership.generation = generation;
    membership.join_seconds = join_seconds;
    return membership;
  }
};

using Operations = std::vector<std::unique_ptr<Operation>>;

// Moves operations on until all are done or one has failed; returns its error, or for whom one waits after so many seconds.
inline std::string run(Transport& transport, Operations& operations, double limit = 60) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    bool moved = transport.progress();
    const Operation* running = nullptr;
    for (const auto& operation : operations) {
      moved |= operation->advance();
      if (operation->state() == State::kFailed) return operation->error();
      if (operation->state() == State::kRunning) running = operation.get();
    }
    if (running == nullptr) return "";
    if (moved) continue;
    if (seconds_since(begin) > limit) return "not done in time: " + running->waits_for();
    pollfd event{transport.wait_descriptor(), POLLIN, 0};
    poll(&event, 1, 20);
  }
}

inline std::string run(Transport& transport, std::unique_ptr<Operation> operation, double limit = 60) {
  Operations operations;
  operations.push_back(std::move(operation));
  return run(transport, operations, limit);
}

using Member = std::function<void(Transport&, Members)>;

// Runs all members, each in a thread.
inline void with_members(Job job, const Member& member) {
  std::vector<std::thread> threads;
  const int count = static_cast<int>(job.addresses.size());
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      Transport transport(job.membership(rank), std::move(job.listeners[rank]));
      Members members;
      members.mine = rank;
      for (int other = 0; other < count; ++other) members.ranks.push_back(other);
      member(transport, members);
      transport.finish(20);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The parts of the program.
void check_pure();
void check_algorithms();
void check_orders();
void check_strangers_and_impostors();
void check_failures();
void print_speed_of_two();
int be_member(const std::vector<std::string>& words);

}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_TCP_MEMBERS_H_

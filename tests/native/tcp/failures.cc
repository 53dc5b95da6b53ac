// Members that die, that stop, that give up, that call with other shapes; and starting again.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "members.h"
#include "numbers.h"

namespace tfdist::collectives::checks {
namespace {

// All-reduces without end, until one fails; returns its error.
std::string run_until_it_fails(Transport& transport, const Members& members, std::size_t count, double limit) {
  for (std::uint64_t id = 1;; ++id) {
    std::vector<float> data = samples<float>(members.mine, count);
    const std::string error =
        run(transport, all_reduce({transport, members, id}, kAlgorithms[id % kAlgorithms.size()], data.data(), count,
                                  DType::kFloat32, Op::kSum), limit);
    if (!error.empty()) return error;
    require(same(data, reduced<float>(members.size(), count, Op::kSum)), "sums until somebody dies");
  }
}

// Four processes; one gets a signal in the middle. The error of every other names it.
void check_signal(int signal, std::size_t count) {
  constexpr int kMembers = 4, kVictim = 2;
  Job job(kMembers);
  int ready[2];
  require(pipe(ready) == 0, "a pipe");
  std::vector<pid_t> children;
  for (int rank = 0; rank < kMembers; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      Descriptor listener = std::move(job.listeners[rank]);
      job.listeners.clear();  // of the others
      Transport transport(job.membership(rank), std::move(listener));
      const Members members{{0, 1, 2, 3}, rank};
      std::vector<float> data(10);
      run(transport, all_reduce({transport, members, 0}, Algorithm::kRing, data.data(), 10, DType::kFloat32, Op::kSum));
      if (write(ready[1], "r", 1) != 1) _exit(9);
      const std::string error = run_until_it_fails(transport, members, count, 1.5);
      transport.abort(error);
      const bool names = has(error, "member 2 (127.0.0.1:" + std::to_string(job.addresses[kVictim].port) + ")");
      const bool says = has(error, signal == SIGKILL ? "has died" : "has not answered");
      if (!names || !says) std::fprintf(stderr, "rank %d: %s\n", rank, error.c_str());
      _exit(names && says ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int i = 0; i < kMembers; ++i) {
    char byte;
    require(read(ready[0], &byte, 1) == 1, "members begin");
  }
  usleep(static_cast<useconds_t>(std::random_device()() % 20000));
  kill(children[kVictim], signal);
  for (int rank = 0; rank < kMembers; ++rank) {
    if (rank == kVictim) continue;
    int status = -1;
    waitpid(children[rank], &status, 0);
    require(status == 0, "member " + std::to_string(rank) + " names the one with signal " + std::to_string(signal));
  }
  kill(children[kVictim], SIGKILL);
  waitpid(children[kVictim], nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

// One gives up, in turns in the middle of large messages, and the others learn why; then all start again on the same
// ports.
void check_abort_and_start_again() {
  std::vector<Address> addresses;
  for (std::uint64_t generation = 1; generation <= 5; ++generation) {
    const Clock::time_point begin = Clock::now();
    Job job(3, "127.0.0.1", addresses);
    job.generation = generation;
    addresses = job.addresses;
    std::atomic<double> started{0};
    std::atomic<bool> in_the_middle{false};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Transport transport(job.membership(rank), std::move(job.listeners[rank]));
        const Members members{{0, 1, 2}, rank};
        std::vector<float> data = samples<float>(rank, 1009);
        std::string error = run(transport, all_reduce({transport, members, 1}, Algorithm::kRing, data.data(), 1009,
                                                      DType::kFloat32, Op::kSum));
        require(error.empty() && same(data, reduced<float>(3, 1009, Op::kSum)), "starting again: " + error);
        started = std::max(started.load(), seconds_since(begin));
        const bool is_large = generation % 2 == 0;
        data = std::vector<float>(is_large ? 4 << 20 : 100);
        // On a busy machine all of it could have arrived by then: one member is late, and nobody can have the sum.
        while (rank == 2 && is_large && !in_the_middle) usleep(1000);
        Operations operations;
        operations.push_back(all_reduce({transport, members, 2}, Algorithm::kRing, data.data(), data.size(),
                                        DType::kFloat32, Op::kSum));
        if (rank == 1) {
          for (int i = 0; i < (is_large ? 200 : 0); ++i) {
            transport.progress();
            operations[0]->advance();
          }
          in_the_middle = true;
          transport.abort("the user has interrupted it");
          operations[0]->advance();
          require(operations[0]->state() == State::kFailed, "an aborted operation has failed");
          return;
        }
        error = run(transport, operations);
        // A message that is half sent may be too long for the time there is to say why.
        require(has(error, "has given up: the user has interrupted it") || (is_large && has(error, "has died")),
                "the others learn why: " + error);
        transport.abort(error);
      });
    }
    for (std::thread& thread : threads) thread.join();
    require(started < 5, "starting again is quick");
    std::printf("started generation %d in %.0f ms\n", static_cast<int>(generation), 1000 * started);
  }
}

void check_other_shapes() {
  with_members(Job(2), [](Transport& transport, const Members& members) {
    for (const std::size_t count : {std::size_t{100}, std::size_t{1} << 20}) {
      std::vector<float> data(count + static_cast<std::size_t>(members.mine));
      Operations operations;
      operations.push_back(all_reduce({transport, members, count}, Algorithm::kOneShot, data.data(), data.size(),
                                      DType::kFloat32, Op::kSum));
      const std::string error = run(transport, operations, 2);
      require(has(error, "bytes where this member expects") || has(error, "not done in time"), "other shapes: " + error);
    }
  });
}

// A member that lives and does not come is named too, and is not said to be stopped.
void check_late_member() {
  with_members(Job(3), [](Transport& transport, const Members& members) {
    const Clock::time_point begin = Clock::now();
    if (members.mine != 1) {
      float data[3] = {};
      const std::string error = run(
          transport, all_reduce({transport, members, 1}, Algorithm::kTwoShot, data, 3, DType::kFloat32, Op::kSum), 1.2);
      require(has(error, "waiting for") && has(error, "member 1") && has(error, "answers"), "a late member: " + error);
    }
    while (seconds_since(begin) < 3) {  // all live until all have given up
      transport.progress();
      pollfd event{transport.wait_descriptor(), POLLIN, 0};
      poll(&event, 1, 20);
    }
  });
}

}  // namespace

void check_failures() {
  check_signal(SIGKILL, 1009);
  check_signal(SIGKILL, 1 << 20);
  check_signal(SIGSTOP, 100003);
  check_abort_and_start_again();
  check_other_shapes();
  check_late_member();
}

}  // namespace tfdist::collectives::checks

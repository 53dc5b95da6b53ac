// Members that are killed or stopped at random moments: the errors of all others name them.

#include <csignal>
#include <random>

#include "parts.h"
#include "processes.h"

namespace tfdist::collectives::checks {
namespace {

constexpr double kSilentSeconds = 3;
constexpr double kLimitSeconds = 40;  // what a survivor may take on a busy machine

// Operations of all kinds without end, until one fails.
std::string run_until_it_fails(Engine& engine, int members) {
  const std::vector<int> all = groups_of(members)[0];
  for (std::uint64_t step = 0;; ++step) {
    Case large(all, engine.rank(), 1, static_cast<int>(step % 5), 200000), small(all, engine.rank(), 2, 2, 50);
    Results results;
    engine.submit(large.operation(engine), large.ranks, results.next());
    engine.submit(small.operation(engine), small.ranks, results.next());
    const std::string error = results.wait();
    if (!error.empty()) return error;
    if (large.out != large.wanted || small.out != small.wanted) complain("a result before the kill");
  }
}

void kill_one(int members, int hosts, int victim, int signal, unsigned delay) {
  const std::string name = "member " + std::to_string(victim) + " ";
  const auto codes = in_processes(
      members, hosts,
      [&](Start start) {
        Engine engine(start.members, start.memory, std::move(start.transport), Engine::Options{kSilentSeconds, 0});
        const Clock::time_point begin = Clock::now();
        const std::string error = run_until_it_fails(engine, members);
        if (error.find(kBroken) != 0 || error.find(name) == std::string::npos) complain(error);
        if (seconds_since(begin) > kLimitSeconds) complain("it took longer than 40 s");
      },
      [&](const Job& job) {
        const std::vector<pid_t>& all = job.processes;
        usleep(static_cast<useconds_t>(delay));
        kill(all[victim], signal);
        for (int other = 0; signal == SIGSTOP && other < members; ++other) {
          siginfo_t ended;
          if (other != victim && waitid(P_PID, all[other], &ended, WEXITED | WNOWAIT) != 0) complain("waitid");
        }
        kill(all[victim], SIGKILL);
      });
  for (int rank = 0; rank < static_cast<int>(codes.size()); ++rank) {
    if (codes[rank] == (rank == victim ? -SIGKILL : 0)) continue;
    complain("member " + std::to_string(rank) + " of " + std::to_string(members) + " on " + std::to_string(hosts) +
             " hosts ended with " + std::to_string(codes[rank]) + " after signal " + std::to_string(signal) + " to member " +
             std::to_string(victim) + " " + std::to_string(delay) + " us after the start");
  }
}

// One that takes no part in the others' operations is killed while it has the directory's lock.
void kill_with_the_lock() {
  constexpr int victim = 2;
  const auto codes = in_processes(3, 1, [&](Start start) {
    Counter& lock = start.memory->header().lock;
    if (start.members.rank == victim) {
      std::uint64_t open = 0;
      while (!lock.compare_exchange_weak(open, victim + 1)) open = 0;
      kill(getpid(), SIGKILL);
    }
    while (lock.load() != victim + 1) usleep(100);
    Engine engine(start.members, start.memory, nullptr, Engine::Options());
    Case sum({0, 1}, engine.rank(), 1, 0, 1000);
    Results results;
    engine.submit(sum.operation(engine), sum.ranks, results.next());
    const std::string error = results.wait();
    if (error.find("member 2 has ended") == std::string::npos) complain("a lock that is kept: " + error);
  });
  if (codes != std::vector<int>{0, 0, -SIGKILL}) complain("a process whose lock is kept");
}

}  // namespace

// Every fourth is stopped; every second job has two hosts.
void kills(int times) {
  kill_with_the_lock();
  std::mt19937 draw(static_cast<unsigned>(getpid()));
  constexpr int kMembers[] = {2, 3, 4, 8};
  for (int i = 0; i < times; ++i) {
    const int members = kMembers[draw() % 4], victim = static_cast<int>(draw() % members);
    kill_one(members, 1 + i / 2 % 2, victim, i % 4 == 3 ? SIGSTOP : SIGKILL, draw() % 20000);
  }
}

}  // namespace tfdist::collectives::checks

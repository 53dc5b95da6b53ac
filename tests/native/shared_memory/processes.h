// Members that are processes, on one host or, as is pretended, on two with TCP between them.

#ifndef TFDIST_TESTS_NATIVE_SHARED_MEMORY_PROCESSES_H_
#define TFDIST_TESTS_NATIVE_SHARED_MEMORY_PROCESSES_H_

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"

namespace tfdist::collectives::checks {

// What a member's engine is made of.
struct Start {
  Engine::Members members;
  std::shared_ptr<Segment> memory;
  std::unique_ptr<Transport> transport;  // where there are two hosts
};

// A job whose members have the memory; they may still be on their way to each other over TCP.
struct Job {
  std::vector<pid_t> processes;
  std::vector<std::shared_ptr<Segment>> memory;  // of each host, whose file this process has
  Membership membership;                         // of whoever it is
};

using Member = std::function<void(Start)>;
using Meanwhile = std::function<void(const Job&)>;

// Runs a function in processes that are members, on so many hosts in turns, and returns what they exited with; a negative
// signal if by one.
inline std::vector<int> in_processes(int members, int hosts, const Member& member, const Meanwhile& meanwhile = nullptr,
                                     double join_seconds = 10) {
  const std::uint64_t nonce[2] = {0x1234, static_cast<std::uint64_t>(getpid())};
  std::string error;
  Membership membership;
  membership.key = "0123456789abcdef";
  membership.join_seconds = join_seconds;
  Engine::Members who;
  std::vector<Descriptor> listeners;
  for (int rank = 0; rank < members; ++rank) {
    who.hosts.push_back(rank % hosts);
    who.index_of_rank.push_back(rank / hosts);
    if (hosts > 1) listeners.push_back(listen_on({"127.0.0.1", 0}, &error));
    membership.members.push_back({"127.0.0.1", hosts > 1 ? port_of(listeners.back()) : std::uint16_t{0}});
  }
  const auto on = [&](int host) { return static_cast<std::size_t>((members - 1 - host) / hosts + 1); };
  std::vector<std::shared_ptr<Segment>> made;
  for (int host = 0; host < hosts; ++host) {
    made.push_back(Segment::create(nonce, on(host), &error));
    if (made.back() == nullptr) {
      complain(error);
      return {};
    }
  }
  const auto wait_for_all = [&](Segment& memory) {
    for (std::size_t i = 0; i < memory.layout().members; ++i) {
      while (!memory.has_come(i)) usleep(100);
    }
  };
  std::vector<pid_t> processes;
  for (int rank = 0; rank < members; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      wrong = 0;
      const int host = rank % hosts;
      Start start{who, Segment::open(made[host]->path(), nonce, on(host), &error), nullptr};
      if (start.memory == nullptr) {
        complain(error);
        std::_Exit(1);
      }
      start.members.rank = membership.rank = rank;
      start.memory->come(who.index_of_rank[rank]);
      for (const auto& memory : made) wait_for_all(*memory);
      if (hosts > 1) start.transport = std::make_unique<Transport>(membership, std::move(listeners[rank]));
      listeners.clear();  // of the others
      member(std::move(start));
      std::_Exit(wrong == 0 ? 0 : 1);
    }
    processes.push_back(child);
  }
  listeners.clear();
  for (const auto& memory : made) wait_for_all(*memory);
  if (meanwhile) meanwhile({processes, made, membership});
  std::vector<int> codes;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_SHARED_MEMORY_PROCESSES_H_

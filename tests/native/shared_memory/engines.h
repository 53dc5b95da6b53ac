// Members that are threads, on one host or, as is pretended, on two with memory of their own each and TCP between them.

#ifndef TFDIST_TESTS_NATIVE_SHARED_MEMORY_ENGINES_H_
#define TFDIST_TESTS_NATIVE_SHARED_MEMORY_ENGINES_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cases.h"

namespace tfdist::collectives::checks {

// Runs a function with the engine of each member; returns the memory of each host.
inline std::vector<std::shared_ptr<Segment>> with_engines(int members, int hosts, const Engine::Options& options,
                                                          const std::function<void(Engine&)>& member) {
  std::string error;
  Membership membership;
  membership.key = "0123456789abcdef";
  std::vector<Descriptor> listeners(members);
  Engine::Members who;
  for (int rank = 0; rank < members; ++rank) {
    if (hosts > 1) listeners[rank] = listen_on({"127.0.0.1", 0}, &error);
    membership.members.push_back({"127.0.0.1", hosts > 1 ? port_of(listeners[rank]) : std::uint16_t{0}});
    who.hosts.push_back(rank % hosts);
    who.index_of_rank.push_back(rank / hosts);
  }
  std::vector<std::shared_ptr<Segment>> memory;
  for (int host = 0; host < hosts; ++host) {
    const int here = (members - 1 - host) / hosts + 1;
    memory.push_back(Segment::anonymous(here, &error));
    if (memory.back() == nullptr) complain(error);
    for (int i = 0; i < here; ++i) memory.back()->come(i);
  }
  std::vector<std::thread> all;
  for (int rank = 0; rank < members; ++rank) {
    membership.rank = who.rank = rank;
    auto transport = hosts > 1 ? std::make_unique<Transport>(membership, std::move(listeners[rank])) : nullptr;
    all.emplace_back([&member, options, who, near = memory[rank % hosts], transport = std::move(transport)]() mutable {
      Engine engine(who, near, std::move(transport), options);
      member(engine);
    });
  }
  for (auto& one : all) one.join();
  return memory;
}

}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_SHARED_MEMORY_ENGINES_H_

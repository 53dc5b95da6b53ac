// What `tfdist.native.engine` calls by name: starts and stops engines.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "registry.h"

using namespace tfdist::collectives;

namespace {
constexpr double kLeastJoinSeconds = 5;  // between members who have agreed a moment ago that they begin

std::int64_t entered(const std::shared_ptr<Segment>& segment, std::uint64_t index) {
  if (segment == nullptr) return 0;
  segment->come(index);
  return segments().add(segment);
}
}  // namespace

#define TFDIST_EXPORT __attribute__((visibility("default")))
extern "C" {

// Makes the memory that the members of a host share, of whom this process is the one with `index`. Its number, and in
// `text` where the others open it; or 0, and why not. Of a member that is alone it is memory of its process.
TFDIST_EXPORT std::int64_t tfdist_collectives_make(std::uint64_t nonce, std::uint64_t other_nonce, std::uint64_t members,
                                                   std::uint64_t index, char* text, std::size_t room) {
  const std::uint64_t nonces[2] = {nonce, other_nonce};
  std::string error;
  const auto segment = members == 1 ? Segment::anonymous(members, &error) : Segment::create(nonces, members, &error);
  std::snprintf(text, room, "%s", segment == nullptr ? error.c_str() : segment->path().c_str());
  return entered(segment, index);
}

// Opens what another member has made. Its number, or 0, and in `text` why not.
TFDIST_EXPORT std::int64_t tfdist_collectives_open(const char* path, std::uint64_t nonce, std::uint64_t other_nonce,
                                                   std::uint64_t members, std::uint64_t index, char* text,
                                                   std::size_t room) {
  const std::uint64_t nonces[2] = {nonce, other_nonce};
  std::string error;
  const auto segment = Segment::open(path, nonces, members, &error);
  std::snprintf(text, room, "%s", error.c_str());
  return entered(segment, index);
}

// Whether a member has shown that it has the same memory.
TFDIST_EXPORT bool tfdist_collectives_has_come(std::int64_t segment, std::uint64_t index) {
  const auto found = segments().find(segment);
  return found != nullptr && found->has_come(index);
}

// Listens for members on other hosts. The socket's number, or 0 and why not; `port` receives its port.
TFDIST_EXPORT std::int64_t tfdist_collectives_listen(const char* host, std::uint16_t* port, char* why, std::size_t room) {
  std::string error;
  auto listener = listen_on({host, 0}, &error);
  if (!listener) {
    std::snprintf(why, room, "%s", error.c_str());
    return 0;
  }
  *port = port_of(listener);
  return listeners().add(std::make_shared<Descriptor>(std::move(listener)));
}

// Starts this process's engine, which takes over the segment and the socket. Its number, or 0 if there is no such segment.
//   hosts, indexes: of each rank.
//   listener: 0 where all members are on one host. Else names and ports: where each rank listens; key: of `key_bytes`.
TFDIST_EXPORT std::int64_t tfdist_collectives_start(std::int64_t segment, std::int32_t rank, std::int32_t size,
                                                    const std::int32_t* hosts, const std::uint32_t* indexes,
                                                    std::int64_t listener, const char* const* names,
                                                    const std::uint16_t* ports, const char* key, std::size_t key_bytes,
                                                    double silent_seconds, double timeout_seconds) {
  auto taken = segments().take(segment);
  if (taken == nullptr) return 0;
  taken->close_file();
  std::unique_ptr<Transport> transport;
  const auto socket = listeners().take(listener);
  if (socket != nullptr) {
    Membership membership;
    membership.rank = rank;
    if (silent_seconds > 0) membership.join_seconds = std::max(kLeastJoinSeconds, silent_seconds);
    membership.key.assign(key, key_bytes);
    for (std::int32_t i = 0; i < size; ++i) membership.members.push_back({names[i], ports[i]});
    transport = std::make_unique<Transport>(membership, std::move(*socket));
  }
  return engines().add(std::make_shared<Engine>(
      Engine::Members{rank, {hosts, hosts + size}, {indexes, indexes + size}}, std::move(taken), std::move(transport),
      Engine::Options{silent_seconds, timeout_seconds}));
}

// Lets go of a segment and of a socket that no engine has taken over.
TFDIST_EXPORT void tfdist_collectives_leave(std::int64_t segment, std::int64_t listener) {
  segments().take(segment);
  listeners().take(listener);
}

// Makes the replicas of one process, with the ranks from 0 on; `numbers` receives those that ops take for an engine's.
TFDIST_EXPORT void tfdist_collectives_replicas(std::int32_t count, std::int64_t* numbers) {
  const auto all = std::make_shared<Replicas>();
  for (std::int32_t rank = 0; rank < count; ++rank) {
    numbers[rank] = -replicas().add(std::make_shared<Replica>(Replica{all, rank}));
  }
}

// For whom an engine has been waiting longest, in words; empty if for nobody.
TFDIST_EXPORT void tfdist_collectives_waits_for(std::int64_t engine, char* text, std::size_t room) {
  const auto found = engines().find(engine);
  std::snprintf(text, room, "%s", found == nullptr ? "" : found->waits_for().c_str());
}

// Fixes the algorithm of all reductions over several hosts; -1: measures the network among all members, who all call this
// before they reduce anything, and chooses by size. False, and why, where a member has ended meanwhile.
TFDIST_EXPORT bool tfdist_collectives_choose(std::int64_t engine, std::int32_t algorithm, char* why, std::size_t room) {
  const auto found = engines().find(engine);
  if (found == nullptr) return true;
  std::string error;
  if (algorithm < 0) {
    error = found->measure();
  } else {
    found->use(static_cast<Algorithm>(algorithm));
  }
  std::snprintf(why, room, "%s", error.c_str());
  return error.empty();
}

TFDIST_EXPORT void tfdist_collectives_abort(std::int64_t engine, const char* reason) {
  if (engine < 0) {
    const auto replica = replicas().find(-engine);
    if (replica != nullptr) replica->all->abort(reason);
    return;
  }
  const auto found = engines().find(engine);
  if (found != nullptr) found->abort(reason);
}

TFDIST_EXPORT void tfdist_collectives_stop(std::int64_t engine) {
  const auto found = engines().find(engine);
  if (found == nullptr || !found->is_own()) return;  // what a fork has of one can be neither stopped nor destroyed
  found->stop();
  engines().take(engine);
}
}

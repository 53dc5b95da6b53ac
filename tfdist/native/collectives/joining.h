// How the members of a job find each other: each listens, connects to the lower ranks and is connected to by the higher.
//
// Nothing waits: whoever drives it calls `progress` when `descriptor` is readable. Strangers who connect, say nothing or
// have another key are dropped, and keep nobody waiting. The listening socket closes when everybody is there.

#ifndef TFDIST_NATIVE_COLLECTIVES_JOINING_H_
#define TFDIST_NATIVE_COLLECTIVES_JOINING_H_

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "handshake.h"
#include "resolver.h"
#include "socket.h"

namespace tfdist::collectives {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Membership {
  int rank = 0;
  std::vector<Address> members;  // where each listens, in the order of ranks
  std::vector<int> peers;        // the ranks to connect with, which name this one too; none: all others
  std::string key;               // the job's secret
  std::uint64_t generation = 0;  // counts the starts of the job
  double join_seconds = 60;      // until everybody must be there
  double handshake_seconds = 10;  // that a connection has to prove itself
  Resolver::Resolve resolve = &collectives::resolve;  // what asks for a name
};

class Joining {
 public:
  struct Joined {
    int rank;
    Descriptor connection;
  };

  Joining(const Membership& membership, Descriptor listener);

  int descriptor() const { return events_.get(); }
  std::vector<Joined> progress();
  // Connections whose other side may take them for joined already: its last word is on the way. For a farewell.
  std::vector<Joined> half_joined();
  bool complete() const { return missing_ == 0; }
  bool late() const { return !complete() && Clock::now() >= deadline_; }
  std::vector<int> absent() const;
  // Why a member is not there yet; for those that connect to this one there is no reason but that they have not.
  std::string reason(int rank) const;

 private:
  enum class Stage { kConnect, kChallenge, kAnswer, kWelcome, kConfirm };

  // A connection that has not proved itself.
  struct Stranger {
    Descriptor connection;
    Stage stage;
    int rank = -1;  // whom this member has called; -1 for a connection that came in
    Clock::time_point deadline;
    std::size_t received = 0;  // bytes of the message that is awaited
    Challenge challenge;
    Answer answer;
    Welcome welcome;
  };

  struct Call {
    std::size_t attempts = 0;
    bool under_way = false;
    Clock::time_point next;
    std::string reason = "it has not been called yet";
  };

  void accept_all();
  void call(int rank);
  bool advance(Stranger& stranger, std::vector<Joined>& joined);  // false: it is dropped
  bool answered(Stranger& stranger);
  bool challenged(Stranger& stranger);
  bool welcomed(Stranger& stranger, std::vector<Joined>& joined);
  bool confirmed(Stranger& stranger, std::vector<Joined>& joined);
  void join(Stranger& stranger, int rank, std::vector<Joined>& joined);
  bool fetch(Stranger& stranger, void* message, std::size_t bytes, bool* whole);
  bool put(Stranger& stranger, const void* message, std::size_t bytes);
  void drop(std::uint64_t id);
  void watch(std::uint64_t id, int descriptor, std::uint32_t events, bool is_new);
  void close_all();

  const Membership membership_;
  std::vector<bool> expected_;
  std::vector<bool> joined_;
  int missing_ = 0;
  Clock::time_point deadline_;
  Descriptor listener_;
  Descriptor events_;
  Descriptor timer_;
  std::unique_ptr<Resolver> resolver_;  // while somebody is called
  std::unordered_map<int, Call> calls_;
  std::unordered_map<std::uint64_t, Stranger> strangers_;
  std::list<std::uint64_t> incoming_;  // the oldest first
  std::uint64_t next_id_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_JOINING_H_

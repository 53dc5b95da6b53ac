// One process's part in a job: its members, the operations that are under way, and the thread that moves them on.

#ifndef TFDIST_NATIVE_COLLECTIVES_ENGINE_H_
#define TFDIST_NATIVE_COLLECTIVES_ENGINE_H_

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "composed.h"
#include "liveness.h"
#include "operation.h"
#include "segment.h"
#include "shared_operation.h"

namespace tfdist::collectives {

// What errors of operations begin with whose engine has ended, by whatever cause.
inline constexpr char kBroken[] = "The native collectives have ended: ";

class Engine {
 public:
  struct Options {
    double silent_seconds = 20;  // a member that is not heard of for so long is lost
    double timeout_seconds = 0;  // an operation that takes longer has failed; 0: however long it takes
  };
  using Done = std::function<void(const std::string& error)>;  // empty: it is done

  // Where the members of a job are.
  struct Members {
    int rank = 0;
    std::vector<int> hosts;                     // the number of each rank's host
    std::vector<std::uint32_t> index_of_rank;  // in the memory of its host
  };

  // All members on this host have come to the segment. The transport is null where all members are on one host.
  Engine(Members members, std::shared_ptr<Segment> segment, std::unique_ptr<Transport> transport, Options options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return members_.rank; }

  // False in a fork of the process that made the engine: it has neither the thread nor a part of its own.
  bool is_own() const { return pid_ == getpid(); }

  // Whether all of these are on this host.
  bool are_near(const std::vector<int>& ranks) const;

  // The members of an operation, of whom this process is one: those of them that are on this host.
  Place place(const std::vector<int>& ranks) const;

  // All of them, over several hosts.
  Hosts hosts(const std::vector<int>& ranks) const;

  // The algorithm of every all_reduce over several hosts from now on, alike on all members.
  void use(Algorithm algorithm);

  // Measures the connections between hosts, by which the algorithm is chosen otherwise; all members call it, before they
  // reduce anything. Returns an error, or nothing.
  std::string measure();

  // The number of the next operation with this key, alike on all of its members: they all have used the key as often.
  std::uint64_t next_id(std::uint64_t key);

  // Moves an operation on until it is done or has failed, and calls `done` then: in this thread, if it goes at once, or
  // in the engine's, which alone uses the transport. `ranks`: its members.
  void submit(std::unique_ptr<Operation> operation, std::vector<int> ranks, Done done);

  // Ends all operations of all members with an error, now and later. In a fork it does nothing, as `stop`.
  void abort(const std::string& reason);

  // For whom this member has been waiting longest: "all_reduce (sum, float32) of 4 bytes is waiting for member 1". Empty if for
  // nobody.
  std::string waits_for();

  // Ends this process's part. Its operations fail; those of others that need it fail too.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    std::unique_ptr<Operation> operation;
    std::vector<int> ranks;
    Done done;
    Clock::time_point begun;
  };

  void run();
  void rest(std::uint32_t seen, std::chrono::milliseconds limit);
  void close_transport();
  bool advance_all();
  void look_after();
  std::string fault();
  std::string oldest_wait() const;
  void fail_all(const std::string& error);
  void end(const std::string& cause);
  std::string cause();
  std::string fate_of_the_lock();
  Member& me() { return segment_->member(members_.index_of_rank[members_.rank]); }
  bool is_here(int rank) const { return members_.hosts[rank] == members_.hosts[members_.rank]; }

  const pid_t pid_ = getpid();
  const Members members_;
  const std::shared_ptr<Segment> segment_;
  const std::unique_ptr<Transport> transport_;  // the thread's own
  const Options options_;
  const bool together_;  // each member on this host can have a processor of its own
  Liveness liveness_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> looks_at_half_a_cause_{0};
  mutable std::mutex mutex_;
  Line line_{50e-6, 1.25e9};                                   // by mutex_; until it is measured, 10 Gbit/s
  std::optional<Algorithm> algorithm_;                         // by mutex_
  std::vector<Work> submitted_;                                // by mutex_
  std::string waits_for_;                                      // by mutex_; as of the last look
  std::unordered_map<std::uint64_t, std::uint64_t> uses_;      // by mutex_
  std::vector<Work> live_;                                     // the thread's own
  int faults_ = 0;                                             // looks in a row that have found one; likewise
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_ENGINE_H_

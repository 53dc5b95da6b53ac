// Whether the members of a host still live: the kernel says when one's process has ended, and a counter that its progress
// thread raises says whether it runs.

#ifndef TFDIST_NATIVE_COLLECTIVES_LIVENESS_H_
#define TFDIST_NATIVE_COLLECTIVES_LIVENESS_H_

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "segment.h"

namespace tfdist::collectives {

inline constexpr int kPidfdOpen = 434;  // its number on every architecture; older headers do not have it

class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  // A member whose counter has not risen for `silent_seconds` is lost; 0: for ever is allowed.
  Liveness(std::shared_ptr<Segment> segment, std::size_t me, double silent_seconds)
      : segment_(std::move(segment)), me_(me), silent_seconds_(silent_seconds), peers_(segment_->layout().members) {
    const std::uint64_t mine = segment_->member(me_).namespace_.load();
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Member& member = segment_->member(i);
      const auto pid = static_cast<pid_t>(member.pid.load());
      peers_[i].heard = Clock::now();
      if (i == me_ || pid == 0 || pid == getpid() || member.namespace_.load() != mine) continue;
      peers_[i].descriptor = static_cast<int>(syscall(kPidfdOpen, pid, 0));  // -1 where the kernel has none
      peers_[i].gone = peers_[i].descriptor < 0 && errno == ESRCH;           // before anybody looked
    }
  }

  ~Liveness() {
    for (const Peer& peer : peers_) {
      if (peer.descriptor >= 0) close(peer.descriptor);
    }
  }
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // Shows the others that this member lives.
  void beat() { segment_->member(me_).heartbeat.fetch_add(1, std::memory_order_relaxed); }

  // Looks at all members. A member that was silent while nobody looked is not blamed for it.
  void look() {
    const Clock::time_point now = Clock::now();
    const bool watched = now - looked_ < std::chrono::seconds(2);
    looked_ = now;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const std::uint64_t beats = segment_->member(i).heartbeat.load(std::memory_order_relaxed);
      if (beats != peers_[i].beats || !watched) {
        peers_[i].beats = beats;
        peers_[i].heard = now;
      }
    }
  }

  // What has become of a member, as of the last look: "has ended"; nothing if it seems to live.
  std::string fate(std::size_t i) {
    if (i == me_) return "";
    if (segment_->member(i).left.load(std::memory_order_acquire) != 0 || peers_[i].gone) return "has ended";
    if (peers_[i].descriptor >= 0) {
      pollfd ended{peers_[i].descriptor, POLLIN, 0};
      if (poll(&ended, 1, 0) > 0) return "has ended";
    }
    const std::chrono::duration<double> silent = looked_ - peers_[i].heard;
    if (silent_seconds_ <= 0 || silent.count() < silent_seconds_) return "";
    return "has not been heard of for " + std::to_string(static_cast<long>(silent.count())) + " s";
  }

 private:
  struct Peer {
    int descriptor = -1;
    bool gone = false;
    std::uint64_t beats = 0;
    Clock::time_point heard;
  };

  std::shared_ptr<Segment> segment_;
  const std::size_t me_;
  const double silent_seconds_;
  std::vector<Peer> peers_;
  Clock::time_point looked_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_LIVENESS_H_

// What this member does with members on other hosts, and what it has heard that they do under the same numbers.
//
// Whether members run the same operation could be compared when their messages meet. But those of different operations need
// not meet: each may wait for the other, or be done before the other begins. So what an operation is goes into the number
// that its messages carry, and different ones never meet; and whoever waits for half a second tells the others what for. Who
// knows another operation under that number, running or done, has found the difference.

#ifndef TFDIST_NATIVE_COLLECTIVES_AGREEMENT_H_
#define TFDIST_NATIVE_COLLECTIVES_AGREEMENT_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "signature.h"

namespace tfdist::collectives {

class Agreement {
 public:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    Doing doing;
    std::vector<int> ranks;   // of its members
    std::vector<int> there;   // those who have said that they do the same
    std::string difference;   // the error, once one has said that it does something else
    Clock::time_point begun;
  };

  explicit Agreement(int rank) : rank_(rank) {}

  // Enters an operation that begins; what is returned stays until `end`.
  const Entry* begin(std::uint64_t id, const Doing& doing, std::vector<int> ranks) {
    Entry& entry = running_[id];
    entry = {doing, std::move(ranks), {}, "", Clock::now()};
    return &entry;
  }

  void end(std::uint64_t id) {
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    done_[ended_++ % done_.size()] = {id, found->second.doing};
    running_.erase(found);
  }

  // Another member waits in an operation, or answers that it has done it. Returns what one that waits has to be told: that
  // this one has done it, or something else. Two that have both done it would answer each other for ever.
  std::optional<Doing> hear(int rank, std::uint64_t id, const Doing& doing, bool waits) {
    const auto found = running_.find(id);
    if (found != running_.end()) {
      Entry& entry = found->second;
      if (entry.doing != doing) {
        entry.difference = collectives::difference(rank_, entry.doing, rank, doing);
      } else if (std::find(entry.there.begin(), entry.there.end(), rank) == entry.there.end()) {
        entry.there.push_back(rank);
      }
      return std::nullopt;  // it is told, if this one has to wait too
    }
    for (std::size_t i = 0; waits && i < std::min<std::size_t>(ended_, done_.size()); ++i) {
      if (done_[i].first == id) return done_[i].second;
    }
    return std::nullopt;
  }

  // The operations that have been under way for so long; at most `kMost`, the oldest ones.
  std::vector<std::pair<std::uint64_t, const Entry*>> waiting(Clock::duration since) const {
    std::vector<std::pair<std::uint64_t, const Entry*>> found;
    const Clock::time_point latest = Clock::now() - since;
    for (const auto& [id, entry] : running_) {
      if (entry.begun <= latest) found.emplace_back(id, &entry);
    }
    const auto older = [](const auto& one, const auto& other) { return one.second->begun < other.second->begun; };
    const std::size_t most = std::min(found.size(), kMost);
    std::partial_sort(found.begin(), found.begin() + most, found.end(), older);
    found.resize(most);
    return found;
  }

 private:
  static constexpr std::size_t kMost = 64;

  const int rank_;
  std::map<std::uint64_t, Entry> running_;
  std::array<std::pair<std::uint64_t, Doing>, 1024> done_{};  // the last ones
  std::size_t ended_ = 0;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_AGREEMENT_H_

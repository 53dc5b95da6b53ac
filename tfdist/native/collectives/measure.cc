#include "measure.h"

#include <algorithm>
#include <limits>

namespace tfdist::collectives {
namespace {

constexpr int kLaps = 4;
constexpr int kTurns = 6;  // of laps, the quickest counts
constexpr std::size_t kBurst = 1 << 20;
constexpr int kBursts = 4;  // the first is left out: connections begin slowly

class Measurement final : public Operation {
 public:
  Measurement(const Call& call, Line* line)
      : call_(call), line_(line), memory_(call.transport.buffers().take(2 * kBurst)) {
    std::fill(memory_.data(), memory_.data() + 2 * kBurst, '\0');
  }

 protected:
  bool move() override {
    if (inner_ == nullptr) next();
    const bool moved = inner_->advance();
    if (inner_->state() == State::kFailed) fail(inner_->error());
    if (inner_->state() == State::kDone) {
      ended(Seconds(Clock::now() - begun_).count());
      ++stage_;
      inner_ = nullptr;
      if (stage_ > kTurns + kBursts) finish();
    }
    return moved;
  }

  void stopped() override {
    if (inner_ != nullptr) inner_->fail(error());
  }

 private:
  // A few bytes around the group, bursts from neighbour to neighbour, and what all have seen.
  void next() {
    const int size = call_.members.size(), mine = call_.members.mine;
    const int right = (mine + 1) % size, left = (mine + size - 1) % size;
    Plan plan;
    if (stage_ < kTurns) {
      for (std::uint32_t lap = 0; lap < kLaps; ++lap) {
        const Step out{Action::kSend, right, lap, 0, 8}, in{Action::kCopy, left, lap, 0, 8};
        plan.push_back(mine == 0 ? out : in);
        plan.push_back(mine == 0 ? in : out);
      }
    } else if (stage_ < kTurns + kBursts) {
      plan.push_back({Action::kSend, right, 0, 0, kBurst});
      plan.push_back({Action::kCopy, left, 0, kBurst, kBurst});
    } else {
      inner_ = all_reduce(step(), Algorithm::kTwoShot, seen_, 2, DType::kFloat64, Op::kMax);
      return;
    }
    inner_ = std::make_unique<PlannedOperation>(call_.transport, call_.members, plan,
                                                PlannedOperation::Arrays{memory_.data()}, step().id);
    begun_ = Clock::now();
  }

  // The stages of one measurement are operations of their own.
  Call step() const {
    Call call = call_;
    call.id += (static_cast<std::uint64_t>(stage_) + 1) * 0x9e3779b97f4a7c15u;
    return call;
  }

  void ended(double seconds) {
    if (stage_ < kTurns) {
      const double hop = seconds / (kLaps * call_.members.size());
      if (call_.members.mine == 0) seen_[0] = stage_ == 0 ? hop : std::min(seen_[0], hop);
    } else if (stage_ < kTurns + kBursts) {
      if (stage_ > kTurns) seen_[1] += seconds / (kBursts - 1);
    } else {
      *line_ = {seen_[0], static_cast<double>(kBurst) / std::max(seen_[1] - seen_[0], 1e-9)};
    }
  }

  const Call call_;
  Line* const line_;
  Buffers::Buffer memory_;
  int stage_ = 0;
  double seen_[2] = {0, 0};  // latency; seconds of a burst
  Clock::time_point begun_{};
  std::unique_ptr<Operation> inner_;  // ends before the memory
};

}  // namespace

std::unique_ptr<Operation> measure_line(const Call& call, Line* line) {
  if (call.members.size() > 1) return std::make_unique<Measurement>(call, line);
  *line = {0, std::numeric_limits<double>::infinity()};
  return std::make_unique<PlannedOperation>(call.transport, call.members, Plan(), PlannedOperation::Arrays{}, call.id);
}

}  // namespace tfdist::collectives

#include "tcp.h"

#include <cstring>
#include <utility>

namespace tfdist::collectives {
namespace {

using Arrays = PlannedOperation::Arrays;

std::unique_ptr<Operation> planned(const Call& call, const Plan& plan, const Arrays& arrays) {
  return std::make_unique<PlannedOperation>(call.transport, call.members, plan, arrays, call.id);
}

// An all_reduce whose partial sums are of a wider dtype than its numbers: rounded once, when all is added up.
class Widened final : public Operation {
 public:
  Widened(const Call& call, const Plan& plan, const Arrays& arrays, std::size_t count)
      : arrays_(arrays),
        count_(count),
        wide_(accumulator(arrays.dtype, arrays.op)),
        buffer_(call.transport.buffers().take(count * size_of(wide_))) {
    convert(arrays.dtype, arrays.data, wide_, buffer_.data(), count);
    inner_ = planned(call, plan, {buffer_.data(), nullptr, wide_, arrays.op});
  }

 protected:
  bool move() override {
    const bool moved = inner_->advance();
    if (inner_->state() == State::kFailed) fail(inner_->error());
    if (inner_->state() == State::kDone) {
      convert(wide_, buffer_.data(), arrays_.dtype, arrays_.data, count_);
      finish();
    }
    return moved;
  }

  void stopped() override { inner_->fail(error()); }

 private:
  const Arrays arrays_;
  const std::size_t count_;
  const DType wide_;
  Buffers::Buffer buffer_;
  std::unique_ptr<Operation> inner_;  // ends before the buffer
};

}  // namespace

std::unique_ptr<Operation> all_reduce(const Call& call, Algorithm algorithm, void* data, std::size_t count,
                                      DType dtype, Op op) {
  const bool rounds = accumulator(dtype, op) != dtype;
  const Plan plan = all_reduce_plan(algorithm, call.members.mine, call.members.size(), count, rounds);
  const bool adds_partial_sums = algorithm == Algorithm::kHalvingDoubling || algorithm == Algorithm::kDoubleTree;
  if (rounds && adds_partial_sums && !plan.empty()) {
    return std::make_unique<Widened>(call, plan, Arrays{data, nullptr, dtype, op}, count);
  }
  return planned(call, plan, {data, nullptr, dtype, op});
}

std::unique_ptr<Operation> reduce_scatter(const Call& call, void* data, const std::vector<std::size_t>& counts,
                                          DType dtype, Op op) {
  return planned(call, reduce_scatter_plan(call.members.mine, parts_of(counts)), {data, nullptr, dtype, op});
}

std::unique_ptr<Operation> all_gather(const Call& call, void* data, const std::vector<std::size_t>& bytes) {
  return planned(call, all_gather_plan(call.members.mine, parts_of(bytes)), {data});
}

std::unique_ptr<Operation> broadcast(const Call& call, void* data, std::size_t bytes, int root) {
  return planned(call, broadcast_plan(call.members.mine, call.members.size(), root, bytes), {data});
}

std::unique_ptr<Operation> all_to_all(const Call& call, const void* sent, const std::vector<std::size_t>& sent_bytes,
                                      void* received, const std::vector<std::size_t>& received_bytes) {
  const Parts out = parts_of(sent_bytes), in = parts_of(received_bytes);
  const int mine = call.members.mine;
  const auto* own = static_cast<const char*>(sent) + out[mine];
  if (sent_bytes[mine] > 0) std::memcpy(static_cast<char*>(received) + in[mine], own, sent_bytes[mine]);
  return planned(call, all_to_all_plan(mine, out, in), {const_cast<void*>(sent), received});
}

std::unique_ptr<Operation> send(const Call& call, const void* data, std::size_t bytes, int to) {
  Plan plan;
  if (bytes > 0) plan.push_back({Action::kSend, to, 0, 0, bytes});
  return planned(call, plan, {const_cast<void*>(data)});
}

std::unique_ptr<Operation> receive(const Call& call, void* data, std::size_t bytes, int from) {
  Plan plan;
  if (bytes > 0) plan.push_back({Action::kCopy, from, 0, 0, bytes});
  return planned(call, plan, {data});
}

}  // namespace tfdist::collectives

#include "composed.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "declared.h"
#include "measure.h"

namespace tfdist::collectives {
namespace {

// Operations one after the other. Each is made when the one before it is done; a step that returns none is done at once.
class Steps final : public Operation {
 public:
  using Step = std::function<std::unique_ptr<Operation>()>;

  explicit Steps(std::vector<Step> steps) : steps_(std::move(steps)) {}

  std::string waits_for() const override { return current_ == nullptr ? "" : current_->waits_for(); }

 private:
  bool move() override {
    if (current_ == nullptr) {
      if (next_ == steps_.size()) {
        finish();
      } else {
        current_ = steps_[next_++]();
      }
      return true;
    }
    const bool moved = current_->advance();
    if (current_->state() == State::kFailed) fail(current_->error());
    if (current_->state() == State::kRunning) return moved;
    current_.reset();
    return true;
  }

  void stopped() override {
    if (current_ != nullptr) current_->fail(error());
  }

  const std::vector<Step> steps_;
  std::size_t next_ = 0;
  std::unique_ptr<Operation> current_;
};

// Operations side by side. One begins each time it is moved on: where that copies megabytes, connections have their turn
// before the next one begins.
class Together final : public Operation {
 public:
  explicit Together(std::vector<std::unique_ptr<Operation>> operations) : operations_(std::move(operations)) {}

  std::string waits_for() const override {
    for (std::size_t i = 0; i < begun_; ++i) {
      if (operations_[i] != nullptr) return operations_[i]->waits_for();
    }
    return "";
  }

 private:
  bool move() override {
    bool moved = begun_ < operations_.size(), running = moved;
    if (moved) ++begun_;
    for (std::size_t i = 0; i < begun_; ++i) {
      std::unique_ptr<Operation>& one = operations_[i];
      if (one == nullptr) continue;
      moved |= one->advance();
      if (one->state() == State::kFailed) {
        fail(one->error());
        return true;
      }
      if (one->state() == State::kDone) one.reset();
      running |= one != nullptr;
    }
    if (!running) finish();
    return moved;
  }

  void stopped() override {
    for (const auto& one : operations_) {
      if (one != nullptr) one->fail(error());
    }
  }

  std::vector<std::unique_ptr<Operation>> operations_;
  std::size_t begun_ = 0;
};

// Fails as soon as it is moved on.
class Failed final : public Operation {
 public:
  explicit Failed(std::string why) : why_(std::move(why)) {}

 private:
  bool move() override {
    fail(why_);
    return true;
  }

  const std::string why_;
};

std::unique_ptr<Operation> declared(const Hosts& hosts, std::uint64_t id, const Doing& doing, std::unique_ptr<Operation> inner) {
  return std::make_unique<Declared>(*hosts.transport, hosts.ranks, id, doing, std::move(inner));
}

// Several tensors are copied one behind the other before they are sent, and back when they are added up: so many bytes at a
// time, so that the line does not wait for it.
constexpr std::size_t kPackedBytes = std::size_t{4} << 20;
constexpr std::uint64_t kFirstRange = 16;  // the numbers of ranges' operations; those below are of what one is made of

// The number of one of the operations that an operation is made of.
std::uint64_t part_of(std::uint64_t id, std::uint64_t part) { return id ^ (part * 0x9e3779b97f4a7c15u); }

Call call_of(const Hosts& hosts, std::uint64_t id) {
  return {*hosts.transport, {hosts.ranks, static_cast<int>(hosts.me)}, id};
}

// The members of each host, in the order of ranks.
std::vector<std::vector<int>> by_host(const Hosts& hosts) {
  std::vector<int> seen;
  std::vector<std::vector<int>> found;
  for (std::size_t i = 0; i < hosts.ranks.size(); ++i) {
    const auto at = std::find(seen.begin(), seen.end(), hosts.host[i]) - seen.begin();
    if (at == static_cast<std::ptrdiff_t>(seen.size())) {
      seen.push_back(hosts.host[i]);
      found.emplace_back();
    }
    found[at].push_back(hosts.ranks[i]);
  }
  return found;
}

Algorithm algorithm_of(const Hosts& hosts, std::size_t bytes, int members, DType dtype) {
  if (hosts.algorithm.has_value()) return *hosts.algorithm;
  return is_exact(dtype) ? choose(bytes, members, hosts.line) : choose_in_rank_order(bytes, members, hosts.line);
}

// What the steps of an all_reduce share.
struct Reduction {
  Hosts hosts;
  std::uint64_t id;
  std::vector<Piece> pieces;
  DType dtype;  // of the pieces
  DType wide;   // of `data`: that of partial sums
  Op op;
  std::size_t count = 0;
  Buffers::Buffer packed, part;     // from the transport's, so that they are not fresh from the kernel each time
  char* data = nullptr;             // all numbers one after the other: the result's memory, where there is one piece
  std::vector<std::size_t> begins;  // of parts, in bytes of `data`

  std::size_t bytes() const { return count * size_of(wide); }

  void pack() {
    const bool in_place = pieces.size() == 1 && wide == dtype;
    if (!in_place) packed = hosts.transport->buffers().take(bytes());
    data = in_place ? static_cast<char*>(pieces[0].into) : packed.data();
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      const std::size_t numbers = piece.bytes / size_of(dtype);
      if (data + at != piece.from) convert(dtype, piece.from, wide, data + at, numbers);
      at += numbers * size_of(wide);
    }
  }

  void unpack() {
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      const std::size_t numbers = piece.bytes / size_of(dtype);
      if (data + at != piece.into) convert(wide, data + at, dtype, piece.into, numbers);
      at += numbers * size_of(wide);
    }
  }
};

std::vector<Steps::Step> in_two_levels(const std::shared_ptr<Reduction>& it, const std::vector<std::vector<int>>& hosts) {
  const std::size_t local = it->hosts.near.members.size(), index = it->hosts.near.me;
  Members across;
  for (const auto& host : hosts) {
    if (std::find(host.begin(), host.end(), it->hosts.ranks[it->hosts.me]) != host.end()) {
      across.mine = across.size();
    }
    across.ranks.push_back(host[index]);
  }
  return {
      [it, local, index]() -> std::unique_ptr<Operation> {
        it->pack();
        for (std::size_t i = 0; i <= local; ++i) it->begins.push_back(it->count * i / local * size_of(it->wide));
        it->part = it->hosts.transport->buffers().take(it->begins[index + 1] - it->begins[index]);
        return shared_reduce_scatter(it->hosts.near, part_of(it->id, 1), it->data, it->part.data(), it->begins,
                                     it->wide, it->op);
      },
      [it, across, index] {
        const std::size_t bytes = it->begins[index + 1] - it->begins[index], count = bytes / size_of(it->wide);
        const Algorithm algorithm = algorithm_of(it->hosts, bytes, across.size(), it->wide);
        return all_reduce({*it->hosts.transport, across, part_of(it->id, 2)}, algorithm, it->part.data(), count, it->wide,
                          it->op);
      },
      [it, index] {
        const std::size_t count = (it->begins[index + 1] - it->begins[index]) / size_of(it->wide);
        return shared_all_gather(it->hosts.near, part_of(it->id, 3), it->part.data(), count, size_of(it->wide),
                                 [it](std::uint64_t) { return it->data; });
      },
  };
}

// The pieces of each range of so many bytes of them all.
std::vector<std::vector<Piece>> in_ranges(const std::vector<Piece>& pieces, std::size_t bytes) {
  std::vector<std::vector<Piece>> ranges;
  std::size_t left = 0;
  for (const Piece& piece : pieces) {
    for (std::size_t at = 0; at < piece.bytes;) {
      if (left == 0) {
        ranges.emplace_back();
        left = bytes;
      }
      const std::size_t part = std::min(left, piece.bytes - at);
      ranges.back().push_back({piece.from + at, piece.into + at, part});
      at += part;
      left -= part;
    }
  }
  return ranges;
}

std::unique_ptr<Operation> reduction(const std::shared_ptr<Reduction>& it, bool even,
                                     const std::vector<std::vector<int>>& groups) {
  std::vector<Steps::Step> steps;
  if (even) {
    steps = in_two_levels(it, groups);
  } else {
    steps.push_back([it] {
      it->pack();
      const Algorithm algorithm =
          algorithm_of(it->hosts, it->bytes(), static_cast<int>(it->hosts.ranks.size()), it->dtype);
      return all_reduce(call_of(it->hosts, it->id), algorithm, it->data, it->count, it->dtype, it->op);
    });
  }
  steps.push_back([it]() -> std::unique_ptr<Operation> {
    it->unpack();
    return nullptr;
  });
  return std::make_unique<Steps>(std::move(steps));
}

}  // namespace

std::unique_ptr<Operation> far_all_reduce(Hosts hosts, std::uint64_t id, std::vector<Piece> pieces, DType dtype, Op op) {
  const auto groups = by_host(hosts);
  const std::size_t local = hosts.near.members.size();
  const bool even = local > 1 && std::all_of(groups.begin(), groups.end(),
                                             [&](const std::vector<int>& group) { return group.size() == local; });
  const DType wide = even ? accumulator(dtype, op) : dtype;
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  const Doing doing{signature(What::kAllReduce, dtype, op, 0), bytes};
  const std::uint64_t number = number_of(id, doing);
  const bool is_packed = pieces.size() > 1 || wide != dtype;
  auto ranges = is_packed ? in_ranges(pieces, kPackedBytes) : std::vector<std::vector<Piece>>{std::move(pieces)};
  std::vector<std::unique_ptr<Operation>> operations;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto it = std::make_shared<Reduction>();
    it->hosts = hosts;
    it->id = part_of(number, kFirstRange + i);
    for (const Piece& piece : ranges[i]) it->count += piece.bytes / size_of(dtype);
    it->pieces = std::move(ranges[i]);
    it->dtype = dtype;
    it->wide = wide;
    it->op = op;
    operations.push_back(reduction(it, even, groups));
  }
  return declared(hosts, id, doing, std::make_unique<Together>(std::move(operations)));
}

std::unique_ptr<Operation> far_reduce_scatter(Hosts hosts, std::uint64_t id, const char* from, char* into,
                                              const std::vector<std::size_t>& begins, DType dtype, Op op) {
  const auto data = std::make_shared<std::vector<char>>();
  const auto shared = std::make_shared<Hosts>(std::move(hosts));
  const Doing doing{signature(What::kReduceScatter, dtype, op, 0), begins.back()};
  const std::uint64_t number = number_of(id, doing);
  std::vector<Steps::Step> steps = {
      [=] {
        data->assign(from, from + begins.back());
        std::vector<std::size_t> counts;
        for (std::size_t i = 0; i + 1 < begins.size(); ++i) counts.push_back((begins[i + 1] - begins[i]) / size_of(dtype));
        return reduce_scatter(call_of(*shared, number), data->data(), counts, dtype, op);
      },
      [=]() -> std::unique_ptr<Operation> {
        copy(into, data->data() + begins[shared->me], begins[shared->me + 1] - begins[shared->me]);
        return nullptr;
      },
  };
  return declared(*shared, id, doing, std::make_unique<Steps>(std::move(steps)));
}

std::unique_ptr<Operation> far_all_to_all(Hosts hosts, std::uint64_t id, const char* from, char* into,
                                          const std::vector<std::size_t>& begins) {
  std::vector<std::size_t> sent;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) sent.push_back(begins[i + 1] - begins[i]);
  const std::vector<std::size_t> received(sent.size(), sent[hosts.me]);
  const Doing doing{signature(What::kAllToAll, DType::kUint8, Op::kSum, 0), begins.back()};
  return declared(hosts, id, doing, all_to_all(call_of(hosts, number_of(id, doing)), from, sent, into, received));
}

std::unique_ptr<Operation> far_all_gather(Hosts hosts, std::uint64_t id, const char* from, std::size_t rows,
                                          std::size_t row_bytes, bool is_even, Allocate allocate) {
  const auto shared = std::make_shared<Hosts>(std::move(hosts));
  const auto counts = std::make_shared<std::vector<std::uint64_t>>(shared->ranks.size(), rows);
  const Doing doing{signature(What::kAllGather, DType::kUint8, Op::kSum, is_even ? kEvenRows : 0),
                    is_even ? rows * row_bytes : row_bytes};
  const std::uint64_t number = number_of(id, doing);
  std::vector<Steps::Step> steps;
  if (!is_even) {
    steps.push_back([=] {
      return all_gather(call_of(*shared, part_of(number, 1)), counts->data(),
                        std::vector<std::size_t>(counts->size(), sizeof(std::uint64_t)));
    });
  }
  steps.push_back([=]() -> std::unique_ptr<Operation> {
    std::uint64_t total = 0;
    std::vector<std::size_t> bytes;
    std::size_t mine = 0;
    for (std::size_t i = 0; i < counts->size(); ++i) {
      if (i == shared->me) mine = total * row_bytes;
      total += (*counts)[i];
      bytes.push_back((*counts)[i] * row_bytes);
    }
    char* into = allocate(total);
    if (into == nullptr && total * row_bytes > 0) {
      return std::make_unique<Failed>("no memory for " + std::to_string(total * row_bytes) + " bytes");
    }
    copy(into + mine, from, rows * row_bytes);
    return all_gather(call_of(*shared, part_of(number, 2)), into, bytes);
  });
  return declared(*shared, id, doing, std::make_unique<Steps>(std::move(steps)));
}

std::unique_ptr<Operation> far_broadcast(Hosts hosts, std::uint64_t id, const char* from, char* into, std::size_t bytes,
                                         std::size_t root) {
  if (hosts.me == root) copy(into, from, bytes);
  const Doing doing{signature(What::kBroadcast, DType::kUint8, Op::kSum, root), bytes};
  return declared(hosts, id, doing, broadcast(call_of(hosts, number_of(id, doing)), into, bytes, static_cast<int>(root)));
}

std::unique_ptr<Operation> far_send(Hosts hosts, std::uint64_t id, const char* from, std::size_t bytes) {
  const Doing doing{signature(What::kSend, DType::kUint8, Op::kSum, 0), bytes};
  return declared(hosts, id, doing, send(call_of(hosts, number_of(id, doing)), from, bytes, 1 - static_cast<int>(hosts.me)));
}

std::unique_ptr<Operation> far_measurement(Hosts hosts, std::uint64_t id, Line* line) {
  const auto shared = std::make_shared<Hosts>(std::move(hosts));
  return std::make_unique<Steps>(
      std::vector<Steps::Step>{[=] { return measure_line(call_of(*shared, id), line); }});
}

std::unique_ptr<Operation> far_receive(Hosts hosts, std::uint64_t id, char* into, std::size_t bytes) {
  const Doing doing{signature(What::kSend, DType::kUint8, Op::kSum, 0), bytes};
  return declared(hosts, id, doing, receive(call_of(hosts, number_of(id, doing)), into, bytes, 1 - static_cast<int>(hosts.me)));
}

}  // namespace tfdist::collectives

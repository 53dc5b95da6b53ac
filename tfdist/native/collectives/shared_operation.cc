#include "shared_operation.h"

#include <algorithm>

#include "bell.h"
#include "signature.h"
#include "stream.h"

namespace tfdist::collectives {
namespace {

// One call moves at most so many chunks, so that operations that are under way together all get on.
constexpr int kStepsPerMove = 24;

// A result of so many bytes is written past the caches: they would lose it before anybody reads it.
constexpr std::size_t kStreamedBytes = std::size_t{8} << 20;

}  // namespace

bool SharedOperation::move() {
  bool moved = false;
  for (bool going = true; going && state() == State::kRunning; moved |= going) {
    switch (phase_) {
      case Phase::kArrive:
        going = arrive();
        break;
      case Phase::kMeet:
        going = meet();
        break;
      case Phase::kArea: {
        const std::uint64_t area = segment().ticket(ticket_).area.load(std::memory_order_acquire);
        if (area != 0) {
          area_ = area - 1;
          phase_ = Phase::kStream;
        } else {
          going = directory_.take_area(ticket_) == Directory::Outcome::kDone;
          if (going) tell_others();
        }
        break;
      }
      case Phase::kStream:
        going = stream();
        if (phase_ == Phase::kStream) return moved || going;
        break;
      case Phase::kLeave:
        going = leave();
        break;
    }
  }
  return moved;
}

bool SharedOperation::arrive() {
  const char* data = post_.bytes <= kSmallBytes ? brought() : nullptr;
  switch (directory_.arrive(id_, me(), size(), post_, data, &ticket_)) {
    case Directory::Outcome::kBusy:
      return false;
    case Directory::Outcome::kFull:
      fail("more than " + std::to_string(kTickets) + " operations wait for other members at the same time");
      return true;
    case Directory::Outcome::kDone:
      break;
  }
  phase_ = Phase::kMeet;
  if (segment().ticket(ticket_).arrived.load(std::memory_order_acquire) == size()) tell_others();
  return true;
}

bool SharedOperation::meet() {
  Ticket& ticket = segment().ticket(ticket_);
  if (ticket.arrived.load(std::memory_order_acquire) < size()) return false;
  const Post* posts = segment().posts(ticket);
  error_ = disagreement(posts);
  if (error_.empty()) error_ = begin(posts);
  phase_ = Phase::kLeave;
  if (!error_.empty()) return true;
  const bool small = ticket.small != 0 && std::all_of(posts, posts + size(), [](const Post& post) {
                       return post.bytes <= kSmallBytes;
                     });
  if (small) {
    std::vector<const char*> brought(size());
    for (std::size_t i = 0; i < size(); ++i) brought[i] = segment().small_slot(ticket.small - 1, i);
    whole(brought);
  } else if ((chunks_ = chunks()) > 0) {
    phase_ = Phase::kArea;
  }
  return true;
}

// Whether all members' counters have come so far.
bool SharedOperation::have(Counter Progress::*counter, std::uint64_t count) {
  Progress* progress = segment().progress(area_);
  for (std::size_t i = 0; i < size(); ++i) {
    if ((progress[i].*counter).load(std::memory_order_acquire) < count) return false;
  }
  return true;
}

bool SharedOperation::stream() {
  Progress& mine = segment().progress(area_)[me()];
  int steps = 0;
  for (bool going = true; going && steps < kStepsPerMove;) {
    going = false;
    if (published_ < chunks_ && (published_ < kSlots || have(&Progress::done, published_ + 1 - kSlots))) {
      publish(published_, slot(me(), published_));
      mine.published.store(++published_, std::memory_order_release);
      going = true;
    }
    if (reduced_ < published_ && have(&Progress::published, reduced_ + 1)) {
      reduce(reduced_);
      mine.reduced.store(++reduced_, std::memory_order_release);
      if (!collects()) mine.done.store(++done_, std::memory_order_release);
      going = true;
    }
    if (collects() && done_ < reduced_ && have(&Progress::reduced, done_ + 1)) {
      collect(done_);
      mine.done.store(++done_, std::memory_order_release);
      going = true;
    }
    steps += going;
  }
  if (steps > 0) tell_others();
  if (done_ == chunks_) phase_ = Phase::kLeave;
  return steps > 0;
}

bool SharedOperation::leave() {
  bool gave_area = false;
  if (directory_.leave(ticket_, &gave_area) == Directory::Outcome::kBusy) return false;
  for (std::size_t i = 0; gave_area && i < segment().layout().members; ++i) tell(segment().member(i));
  if (error_.empty()) {
    finish();
  } else {
    fail(error_);
  }
  return true;
}

void SharedOperation::tell_others() {
  for (std::size_t i = 0; i < size(); ++i) {
    if (i != me()) tell(segment().member(place_.members[i]));
  }
}

std::string SharedOperation::disagreement(const Post* posts) const {
  const Doing mine{post_.signature, post_.size};
  for (std::size_t i = 0; i < place_.members.size(); ++i) {
    const Doing other{posts[i].signature, posts[i].size};
    if (other != mine) return difference(place_.ranks[me()], mine, place_.ranks[i], other);
  }
  return "";
}

std::string SharedOperation::waits_for() const {
  if (phase_ != Phase::kMeet) return "";
  std::vector<std::size_t> absent;
  directory_.add_absent(ticket_, &absent);
  std::string text;
  for (const std::size_t i : absent) text += (text.empty() ? "waiting for member " : ", member ") + std::to_string(place_.ranks[i]);
  return text;
}

namespace {

// Calls function(piece, offset in it, offset in the range, bytes) for what lies in a range of the pieces.
template <typename Function>
void in_range(const std::vector<Piece>& pieces, std::size_t begin, std::size_t end, Function function) {
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    const std::size_t first = std::max(at, begin), last = std::min(at + piece.bytes, end);
    if (first < last) function(piece, first - at, first - begin, last - first);
    at += piece.bytes;
    if (at >= end) return;
  }
}

std::size_t total_of(const std::vector<Piece>& pieces) {
  std::size_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes;
  return total;
}

class AllReduce final : public SharedOperation {
 public:
  AllReduce(Place place, std::uint64_t id, std::vector<Piece> pieces, DType dtype, Op op)
      : SharedOperation(std::move(place), id,
                        Post{signature(What::kAllReduce, dtype, op, 0), total_of(pieces), total_of(pieces), 0}),
        pieces_(std::move(pieces)),
        bytes_(total_of(pieces_)),
        dtype_(dtype),
        op_(op) {}

 private:
  const char* brought() override {
    packed_.resize(bytes_);
    in_range(pieces_, 0, bytes_, [&](const Piece& piece, std::size_t, std::size_t at, std::size_t bytes) {
      copy(&packed_[at], piece.from, bytes);
    });
    return packed_.data();
  }

  std::string begin(const Post*) override {
    // A small tensor is cut in some chunks too, so that members work side by side.
    const std::size_t eighth = (bytes_ / 8 + kPage - 1) / kPage * kPage;
    chunk_ = std::clamp(eighth, std::min<std::size_t>(4 * kPage, segment().layout().chunk), segment().layout().chunk);
    parts_.resize(size());
    return "";
  }

  void whole(const std::vector<const char*>& brought) override {
    in_range(pieces_, 0, bytes_, [&](const Piece& piece, std::size_t, std::size_t at, std::size_t bytes) {
      for (std::size_t i = 0; i < size(); ++i) parts_[i] = brought[i] + at;
      collectives::reduce(dtype_, op_, piece.into, parts_.data(), size(), bytes / size_of(dtype_));
    });
  }

  std::uint64_t chunks() override { return (bytes_ + chunk_ - 1) / chunk_; }

  // The part of a chunk that a member reduces: from where to where, in bytes behind the chunk's beginning.
  std::pair<std::size_t, std::size_t> part(std::uint64_t chunk, std::size_t member) const {
    const std::size_t bytes = std::min(chunk_, bytes_ - chunk * chunk_);
    const std::size_t each = ((bytes + size_ - 1) / size_ + kLine - 1) / kLine * kLine;
    return {std::min(bytes, each * member), std::min(bytes, each * (member + 1))};
  }

  void publish(std::uint64_t chunk, char* slot) override {
    const std::size_t begin = chunk * chunk_, end = std::min(begin + chunk_, bytes_);
    const auto [first, last] = part(chunk, me());
    const auto put = [&](std::size_t from, std::size_t to) {
      in_range(pieces_, begin + from, begin + to,
               [&](const Piece& piece, std::size_t offset, std::size_t at, std::size_t bytes) {
                 copy(slot + from + at, piece.from + offset, bytes);
               });
    };
    put(0, first);
    put(last, end - begin);
  }

  void reduce(std::uint64_t chunk) override {
    const auto [first, last] = part(chunk, me());
    const std::size_t begin = chunk * chunk_;
    char* result = slot(me(), chunk);
    in_range(pieces_, begin + first, begin + last,
             [&, first = first](const Piece& piece, std::size_t offset, std::size_t at, std::size_t bytes) {
               for (std::size_t i = 0; i < size(); ++i) {
                 parts_[i] = i == me() ? piece.from + offset : slot(i, chunk) + first + at;
               }
               collectives::reduce(dtype_, op_, result + first + at, parts_.data(), size(), bytes / size_of(dtype_),
                                   piece.into + offset, streams(piece));
             });
  }

  bool collects() const override { return true; }

  void collect(std::uint64_t chunk) override {
    const std::size_t begin = chunk * chunk_;
    for (std::size_t i = 0; i < size(); ++i) {
      if (i == me()) continue;
      const auto [first, last] = part(chunk, i);
      const char* result = slot(i, chunk) + first;
      in_range(pieces_, begin + first, begin + last,
               [&](const Piece& piece, std::size_t offset, std::size_t at, std::size_t bytes) {
                 if (streams(piece)) {
                   stream_copy(piece.into + offset, result + at, bytes);
                 } else {
                   copy(piece.into + offset, result + at, bytes);
                 }
               });
    }
  }

  // What is written where it was read is in a cache already.
  bool streams(const Piece& piece) const { return bytes_ >= kStreamedBytes && piece.into != piece.from; }

  std::vector<Piece> pieces_;
  const std::size_t bytes_;
  const std::size_t size_ = size();
  const DType dtype_;
  const Op op_;
  std::size_t chunk_ = 0;
  std::vector<char> packed_;
  std::vector<const void*> parts_;
};

// Parts that go to one member each: reduced there, or put one after the other.
class Scatter final : public SharedOperation {
 public:
  Scatter(Place place, std::uint64_t id, const Post& post, const char* from, char* into, std::vector<std::size_t> begins,
          bool reduces, DType dtype, Op op)
      : SharedOperation(std::move(place), id, post),
        from_(from),
        into_(into),
        begins_(std::move(begins)),
        reduces_(reduces),
        dtype_(dtype),
        op_(op) {}

 private:
  std::size_t bytes_of(std::size_t member) const { return begins_[member + 1] - begins_[member]; }

  const char* brought() override { return from_; }

  std::string begin(const Post*) override {
    each_ = segment().layout().chunk / size() / kLine * kLine;
    parts_.resize(size());
    return "";
  }

  void whole(const std::vector<const char*>& brought) override {
    take(0, bytes_of(me()), [&](std::size_t i) { return brought[i] + begins_[me()]; });
  }

  std::uint64_t chunks() override {
    std::size_t most = 0;
    for (std::size_t i = 0; i < size(); ++i) most = std::max(most, bytes_of(i));
    return (most + each_ - 1) / each_;
  }

  void publish(std::uint64_t chunk, char* slot) override {
    const std::size_t first = chunk * each_;
    for (std::size_t i = 0; i < size(); ++i) {
      if (i == me() || first >= bytes_of(i)) continue;
      copy(slot + i * each_, from_ + begins_[i] + first, std::min(each_, bytes_of(i) - first));
    }
  }

  void reduce(std::uint64_t chunk) override {
    const std::size_t first = chunk * each_;
    if (first >= bytes_of(me())) return;
    take(first, std::min(each_, bytes_of(me()) - first), [&](std::size_t i) {
      return i == me() ? from_ + begins_[i] + first : slot(i, chunk) + me() * each_;
    });
  }

  // `part(i)` says where the bytes are that member i has for this one.
  template <typename Part>
  void take(std::size_t first, std::size_t bytes, Part part) {
    if (reduces_) {
      for (std::size_t i = 0; i < size(); ++i) parts_[i] = part(i);
      collectives::reduce(dtype_, op_, into_ + first, parts_.data(), size(), bytes / size_of(dtype_));
    } else {
      for (std::size_t i = 0; i < size(); ++i) copy(into_ + i * bytes_of(me()) + first, part(i), bytes);
    }
  }

  const char* from_;
  char* into_;
  const std::vector<std::size_t> begins_;
  const bool reduces_;
  const DType dtype_;
  const Op op_;
  std::size_t each_ = 0;
  std::vector<const void*> parts_;
};

// What members bring goes to all, one after the other.
class Gather final : public SharedOperation {
 public:
  Gather(Place place, std::uint64_t id, const Post& post, const char* from, Allocate allocate)
      : SharedOperation(std::move(place), id, post), from_(from), mine_(post.bytes), allocate_(std::move(allocate)) {}

 private:
  const char* brought() override { return from_; }

  std::string begin(const Post* posts) override {
    begins_.assign(1, 0);
    std::uint64_t rows = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      rows += posts[i].rows;
      most_ = std::max<std::size_t>(most_, posts[i].bytes);
      begins_.push_back(begins_.back() + posts[i].bytes);
    }
    into_ = allocate_(rows);
    return into_ == nullptr && begins_.back() > 0 ? "no memory for " + std::to_string(begins_.back()) + " bytes" : "";
  }

  void whole(const std::vector<const char*>& brought) override {
    for (std::size_t i = 0; i < size(); ++i) {
      if (into_ != kNowhere) copy(into_ + begins_[i], brought[i], begins_[i + 1] - begins_[i]);
    }
  }

  std::uint64_t chunks() override { return (most_ + segment().layout().chunk - 1) / segment().layout().chunk; }

  void publish(std::uint64_t chunk, char* slot) override {
    const std::size_t first = chunk * segment().layout().chunk;
    if (first < mine_) copy(slot, from_ + first, std::min(segment().layout().chunk, mine_ - first));
  }

  void reduce(std::uint64_t chunk) override {
    const std::size_t first = chunk * segment().layout().chunk;
    if (into_ == kNowhere) return;
    for (std::size_t i = 0; i < size(); ++i) {
      const std::size_t bytes = begins_[i + 1] - begins_[i];
      if (first >= bytes) continue;
      copy(into_ + begins_[i] + first, i == me() ? from_ + first : slot(i, chunk),
           std::min(segment().layout().chunk, bytes - first));
    }
  }

 public:
  static char nowhere_;
  static constexpr char* kNowhere = &nowhere_;  // what a sender's bytes go to

 private:
  const char* from_;
  const std::size_t mine_;
  const Allocate allocate_;
  char* into_ = nullptr;
  std::size_t most_ = 0;
  std::vector<std::size_t> begins_;
};

char Gather::nowhere_ = 0;

}  // namespace

std::unique_ptr<SharedOperation> shared_all_reduce(Place place, std::uint64_t id, std::vector<Piece> pieces, DType dtype,
                                                   Op op) {
  return std::make_unique<AllReduce>(std::move(place), id, std::move(pieces), dtype, op);
}

std::unique_ptr<SharedOperation> shared_reduce_scatter(Place place, std::uint64_t id, const char* from, char* into,
                                                       std::vector<std::size_t> begins, DType dtype, Op op) {
  const Post post{signature(What::kReduceScatter, dtype, op, 0), begins.back(), begins.back(), 0};
  return std::make_unique<Scatter>(std::move(place), id, post, from, into, std::move(begins), true, dtype, op);
}

std::unique_ptr<SharedOperation> shared_all_to_all(Place place, std::uint64_t id, const char* from, char* into,
                                                   std::vector<std::size_t> begins) {
  const Post post{signature(What::kAllToAll, DType::kUint8, Op::kSum, 0), begins.back(), begins.back(), 0};
  return std::make_unique<Scatter>(std::move(place), id, post, from, into, std::move(begins), false, DType::kUint8,
                                   Op::kSum);
}

std::unique_ptr<SharedOperation> shared_all_gather(Place place, std::uint64_t id, const char* from, std::size_t rows,
                                                   std::size_t row_bytes, Allocate allocate) {
  const Post post{signature(What::kAllGather, DType::kUint8, Op::kSum, 0), row_bytes, rows * row_bytes, rows};
  return std::make_unique<Gather>(std::move(place), id, post, from, std::move(allocate));
}

std::unique_ptr<SharedOperation> shared_broadcast(Place place, std::uint64_t id, const char* from, char* into,
                                                  std::size_t bytes, std::size_t root) {
  const std::size_t brought = place.me == root ? bytes : 0;
  const Post post{signature(What::kBroadcast, DType::kUint8, Op::kSum, root), bytes, brought, 0};
  return std::make_unique<Gather>(std::move(place), id, post, from,
                                  [into](std::uint64_t) { return into; });
}

std::unique_ptr<SharedOperation> shared_send(Place place, std::uint64_t id, const char* from, std::size_t bytes) {
  const Post post{signature(What::kSend, DType::kUint8, Op::kSum, 0), bytes, bytes, 0};
  return std::make_unique<Gather>(std::move(place), id, post, from,
                                  [](std::uint64_t) { return Gather::kNowhere; });
}

std::unique_ptr<SharedOperation> shared_receive(Place place, std::uint64_t id, char* into, std::size_t bytes) {
  const Post post{signature(What::kSend, DType::kUint8, Op::kSum, 0), bytes, 0, 0};
  return std::make_unique<Gather>(std::move(place), id, post, nullptr,
                                  [into](std::uint64_t) { return into; });
}

}  // namespace tfdist::collectives

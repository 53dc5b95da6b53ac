#include "channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/uio.h>

namespace tfdist::collectives {
namespace {

constexpr std::size_t kLargestFrame = 1 << 20;  // what else waits on the connection, waits for no more than this
constexpr std::size_t kLongestFarewell = 1024;
constexpr std::size_t kFramesAtOnce = 32;
constexpr int kCallsAtOnce = 8;  // so that one busy connection does not keep the others waiting

}  // namespace

void Channel::open(Descriptor connection) { connection_ = std::move(connection); }

void Channel::close(const std::string& reason) {
  if (!error_.empty()) return;
  error_ = member_ + " " + reason;
  connection_.reset();
  for (auto& [tag, message] : outgoing_) message.request->fail(error_);
  for (const Writing& writing : queue_) {
    if (writing.request != nullptr) writing.request->fail(error_);
  }
  for (auto message = incoming_.begin(); message != incoming_.end();) {
    Incoming& one = message->second;
    if (one.request != nullptr) one.request->fail(error_);
    // What has come as a whole is still there for one who asks.
    const bool is_whole = one.is_kept && one.request == nullptr && one.filled == one.total;
    message = is_whole ? std::next(message) : incoming_.erase(message);
  }
  outgoing_.clear();
  queue_.clear();
  control_.clear();
  waiting_ = 0;
}

void Channel::drop_waiting() { queue_.resize(written_ > 0 ? 1 : 0); }

void Channel::leave(const std::string& reason) {
  farewell_ = reason.substr(0, kLongestFarewell);
  Writing writing;
  writing.frame.kind = Kind::kLeave;
  writing.frame.total = writing.frame.bytes = farewell_.size();
  writing.data = farewell_.data();
  control_.push_back(writing);
  write();
}

void Channel::control(Kind kind, Tag tag, std::uint64_t total, std::uint64_t bytes) {
  Writing writing;
  writing.frame = {kind, tag.step, tag.operation, total, bytes};
  control_.push_back(writing);
}

void Channel::ping() {
  if (asked_ != Clock::time_point()) return;
  asked_ = Clock::now();
  control(Kind::kPing);
}

double Channel::silent_seconds() const {
  if (asked_ == Clock::time_point()) return 0;
  return std::chrono::duration<double>(Clock::now() - asked_).count();
}

void Channel::send(Tag tag, const void* data, std::size_t bytes, std::size_t total, Request* request) {
  if (!error_.empty()) return request->fail(error_);
  const auto [found, is_new] = outgoing_.try_emplace(tag);
  Outgoing& message = found->second;
  if (is_new) {
    message.total = total;
    message.request = request;
    if (total <= kEagerBytes && total <= credit_) {
      credit_ -= total;
      message.kind = Kind::kEager;
    } else if (grants_.erase(tag) > 0) {
      message.kind = Kind::kGranted;
    } else {
      control(Kind::kAnnounce, tag, total);
    }
  }
  const Piece piece{static_cast<const char*>(data), bytes};
  message.queued += bytes;
  if (message.kind == Kind::kAnnounce) {
    message.waiting.push_back(piece);
  } else {
    queue(message, tag, piece);
    if (message.queued >= message.total) outgoing_.erase(found);
  }
}

void Channel::queue(const Outgoing& message, Tag tag, Piece piece) {
  while (piece.bytes > 0) {
    const std::size_t bytes = std::min(piece.bytes, kLargestFrame);
    queue_.push_back({{message.kind, tag.step, tag.operation, message.total, bytes}, piece.data, message.request});
    piece.data += bytes;
    piece.bytes -= bytes;
  }
}

void Channel::granted(Tag tag) {
  const auto found = outgoing_.find(tag);
  if (found == outgoing_.end()) {
    grants_.insert(tag);
  } else if (Outgoing& message = found->second; message.kind == Kind::kAnnounce) {
    message.kind = Kind::kGranted;
    for (const Piece& piece : message.waiting) queue(message, tag, piece);
    message.waiting.clear();
    if (message.queued >= message.total) outgoing_.erase(found);
  }
}

bool Channel::write() {
  bool moved = false;
  for (int call = 0; call < kCallsAtOnce && wants_to_write(); ++call) {
    queue_.insert(queue_.begin() + (written_ > 0 ? 1 : 0), control_.begin(), control_.end());
    control_.clear();
    iovec parts[2 * kFramesAtOnce];
    std::size_t count = 0, skip = written_;
    const auto add = [&](const void* data, std::size_t bytes) {
      if (skip < bytes) {
        parts[count].iov_base = const_cast<char*>(static_cast<const char*>(data) + skip);
        parts[count++].iov_len = bytes - skip;
      }
      skip -= std::min(skip, bytes);
    };
    for (std::size_t i = 0; i < std::min(queue_.size(), kFramesAtOnce); ++i) {
      add(&queue_[i].frame, sizeof(Frame));
      if (queue_[i].data != nullptr) add(queue_[i].data, queue_[i].frame.bytes);
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t bytes = sendmsg(connection_.get(), &message, MSG_NOSIGNAL);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (bytes < 0) {
      // It may have said why it goes, and that is still to be read.
      if (errno != EPIPE && errno != ECONNRESET) close(std::string("cannot be sent to (") + std::strerror(errno) + ")");
      break;
    }
    sent(static_cast<std::size_t>(bytes));
    moved = true;
  }
  return moved;
}

void Channel::sent(std::size_t bytes) {
  while (bytes > 0) {
    Writing& writing = queue_.front();
    const std::size_t part = std::min(bytes, writing.size() - written_);
    const std::size_t before = std::max(written_, sizeof(Frame));
    written_ += part;
    bytes -= part;
    if (writing.request != nullptr && written_ > before) writing.request->move(written_ - before, writing.frame.total);
    if (written_ == writing.size()) {
      queue_.pop_front();
      written_ = 0;
    }
  }
}

void Channel::receive(Tag tag, Sink sink, std::size_t total, Request* request) {
  if (!error_.empty() && incoming_.count(tag) == 0) return request->fail(error_);
  const auto [found, is_new] = incoming_.try_emplace(tag);
  Incoming& message = found->second;
  if (!is_new && (message.request != nullptr || message.is_thrown)) {
    return request->fail("two operations with " + member_ + " have one key at the same time");
  }
  if (!is_new && message.total != total) return request->fail(mismatch(message.total, total));
  message.total = total;
  message.request = request;
  message.sink = std::move(sink);
  ++waiting_;
  if (message.is_kept) {
    if (message.filled == message.total) finish(tag);
  } else if (total > kEagerBytes || !is_new) {
    control(Kind::kGrant, tag, total);
  }
}

void Channel::cancel(const Request* request) {
  for (auto& [tag, message] : incoming_) {
    if (message.request != request) continue;
    message.request = nullptr;
    message.sink = {};
    message.is_thrown = true;
    --waiting_;
  }
  for (auto message = outgoing_.begin(); message != outgoing_.end();) {
    message = message->second.request == request ? outgoing_.erase(message) : std::next(message);
  }
  // What is left of a frame that is being written has to follow, or nothing else could.
  if (written_ > 0 && queue_.front().request == request) {
    Writing& writing = queue_.front();
    remains_.assign(writing.data, writing.data + writing.frame.bytes);
    writing.data = remains_.data();
    writing.request = nullptr;
  }
  const auto mine = [&](const Writing& writing) { return writing.request == request; };
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), mine), queue_.end());
}

// ---- reading

bool Channel::read(PassingMemory& memory) {
  bool moved = false;
  for (int call = 0; call < kCallsAtOnce && is_open(); ++call) {
    if (ahead_begin_ == ahead_end_) ahead_begin_ = ahead_end_ = 0;
    iovec parts[2];
    std::size_t count = 0, direct = 0;
    if (Incoming* message = body()) {  // then nothing is left that was read ahead
      const Piece piece = place(memory, *message);
      direct = piece.bytes;
      parts[count++] = {const_cast<char*>(piece.data), piece.bytes};
    }
    parts[count++] = {ahead_.data() + ahead_end_, ahead_.size() - ahead_end_};
    const ssize_t bytes = readv(connection_.get(), parts, static_cast<int>(count));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (bytes <= 0) {
      const std::string how = bytes == 0 ? "" : std::string(" (") + std::strerror(errno) + ")";
      close(!other_leaves_            ? "has died: its connection is closed" + how
            : other_farewell_.empty() ? "has ended"
                                      : "has given up: " + other_farewell_);
      return true;
    }
    moved = true;
    asked_ = {};
    const std::size_t size = static_cast<std::size_t>(bytes);
    if (!received(std::min(size, direct), size - std::min(size, direct), memory)) return broken();
    if (size < direct) break;  // the kernel has no more
  }
  return moved;
}

std::string Channel::mismatch(std::size_t sent, std::size_t expected) const {
  return member_ + " sends " + std::to_string(sent) + " bytes where this member expects " + std::to_string(expected) +
         "; all members have to call an operation with the same shapes and dtypes";
}

bool Channel::broken() {
  close("has sent what no member sends; do all members run the same version of tfdist?");
  return true;
}

Channel::Incoming* Channel::body() {
  if (body_left_ == 0) return nullptr;
  return frame_.kind == Kind::kLeave ? &leaving_ : &incoming_.at(frame_.tag());
}

bool Channel::received(std::size_t direct, std::size_t ahead, PassingMemory& memory) {
  if (direct > 0) arrived(memory, *body(), direct);
  ahead_end_ += ahead;
  while (ahead_begin_ < ahead_end_) {
    const std::size_t left = ahead_end_ - ahead_begin_;
    const char* data = ahead_.data() + ahead_begin_;
    if (Incoming* message = body()) {
      const Piece piece = place(memory, *message);
      const std::size_t bytes = std::min(piece.bytes, left);
      std::memcpy(const_cast<char*>(piece.data), data, bytes);
      ahead_begin_ += bytes;
      arrived(memory, *message, bytes);
    } else if (left >= sizeof(Frame)) {
      Frame frame;
      std::memcpy(&frame, data, sizeof frame);
      ahead_begin_ += sizeof frame;
      if (!start(frame)) return false;
    } else {
      std::memmove(ahead_.data(), data, left);
      ahead_begin_ = 0;
      ahead_end_ = left;
      break;
    }
  }
  return true;
}

// Looks at a frame. False for one that no member sends.
bool Channel::start(const Frame& frame) {
  const Tag tag = frame.tag();
  switch (frame.kind) {
    case Kind::kPing:
      control(Kind::kPong);
      return true;
    case Kind::kPong:
      return true;
    case Kind::kDoing:
      said_.push_back({frame.operation, {frame.total, frame.bytes}, frame.step == 1});
      return true;
    case Kind::kCredit:
      credit_ += frame.bytes;
      return credit_ <= kEagerCredit;
    case Kind::kGrant:
      granted(tag);
      return true;
    case Kind::kLeave:
      other_leaves_ = true;
      leaving_ = {};
      leaving_.total = frame.bytes;
      leaving_.is_kept = true;
      leaving_.kept.resize(frame.bytes <= kLongestFarewell ? frame.bytes : 0);
      frame_ = frame;
      body_left_ = frame.bytes;
      return frame.bytes <= kLongestFarewell;
    case Kind::kAnnounce: {
      const auto [found, is_new] = incoming_.try_emplace(tag);
      Incoming& message = found->second;
      if (is_new) {
        message.total = frame.total;
      } else if (message.request != nullptr && message.total != frame.total) {
        message.request->fail(mismatch(frame.total, message.total));
      } else if (message.request != nullptr && message.total <= kEagerBytes) {
        control(Kind::kGrant, tag, frame.total);  // greater ones were granted when they were asked for
      }
      return true;
    }
    case Kind::kEager:
    case Kind::kGranted: {
      const auto [found, is_new] = incoming_.try_emplace(tag);
      Incoming& message = found->second;
      const bool is_eager = frame.kind == Kind::kEager;
      if (frame.bytes == 0 || frame.total > (is_eager ? kEagerBytes : SIZE_MAX)) return false;
      if (is_new) {
        message.total = frame.total;
        message.is_kept = is_eager;
        message.is_thrown = !is_eager;
        if (is_eager) message.kept.resize(frame.total);
        kept_bytes_ += message.kept.size();
        if (kept_bytes_ > kEagerCredit) return false;
      } else if (message.total != frame.total) {
        if (message.request == nullptr) return false;
        message.request->fail(mismatch(frame.total, message.total));
        message.request = nullptr;
        message.is_thrown = true;
        message.total = frame.total;
        --waiting_;
      }
      message.is_eager = is_eager;
      frame_ = frame;
      body_left_ = frame.bytes;
      return message.filled <= message.total && frame.bytes <= message.total - message.filled;
    }
  }
  return false;
}

// Where the next bytes of the body go, and how many.
Channel::Piece Channel::place(PassingMemory& memory, Incoming& message) {
  if (message.is_kept) return {message.kept.data() + message.filled, body_left_};
  if (!message.is_thrown && message.sink.consumer == nullptr) return {message.sink.data + message.filled, body_left_};
  std::memcpy(memory.data(), message.part.data(), message.part_bytes);
  return {memory.data() + message.part_bytes, std::min(body_left_, PassingMemory::kBytes)};
}

void Channel::arrived(PassingMemory& memory, Incoming& message, std::size_t bytes) {
  message.filled += bytes;
  body_left_ -= bytes;
  if (frame_.kind == Kind::kLeave) {
    if (body_left_ == 0) other_farewell_.assign(message.kept.begin(), message.kept.end());
    return;
  }
  if (!message.is_kept && !message.is_thrown) {
    if (message.sink.consumer == nullptr) {
      message.request->move(bytes, message.total);
    } else {
      const std::size_t there = message.part_bytes + bytes;
      message.part_bytes = there % message.sink.grain;
      deliver(message, memory.data(), there - message.part_bytes);
      std::memcpy(message.part.data(), memory.data() + there - message.part_bytes, message.part_bytes);
    }
  }
  const bool is_whole = body_left_ == 0 && message.filled == message.total;
  if (is_whole && (!message.is_kept || message.request != nullptr || message.is_thrown)) finish(frame_.tag());
}

void Channel::deliver(Incoming& message, const char* data, std::size_t bytes) {
  if (bytes == 0) return;
  message.sink.consumer(data, bytes);
  message.request->move(bytes, message.total);
}

// All of a message is there, and whoever asks for it has asked.
void Channel::finish(Tag tag) {
  Incoming& message = incoming_.at(tag);
  if (message.is_kept) {
    if (message.request != nullptr) {
      if (message.sink.consumer != nullptr) {
        deliver(message, message.kept.data(), message.total);
      } else {
        std::memcpy(message.sink.data, message.kept.data(), message.total);
        message.request->move(message.total, message.total);
      }
    }
    kept_bytes_ -= message.kept.size();
  }
  if (message.request != nullptr) --waiting_;
  if (message.is_eager) return_credit(message.total);
  incoming_.erase(tag);
}

void Channel::return_credit(std::size_t bytes) {
  owed_credit_ += bytes;
  if (owed_credit_ < kEagerCredit / 4) return;
  control(Kind::kCredit, {}, 0, owed_credit_);
  owed_credit_ = 0;
}

}  // namespace tfdist::collectives

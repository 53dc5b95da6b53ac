#include "transport.h"

#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

namespace tfdist::collectives {
namespace {

constexpr std::uint64_t kJoining = 0, kPings = 1, kFirstMember = 2;
// How often a member that waits asks the others whether they are there.
constexpr auto kBetweenPings = std::chrono::milliseconds(500);
constexpr auto kFarewell = std::chrono::milliseconds(100);

}  // namespace

Transport::Transport(const Membership& membership, Descriptor listener)
    : membership_(membership),
      agreement_(membership.rank),
      watched_for_writing_(membership.members.size()),
      joining_(std::make_unique<Joining>(membership, std::move(listener))),
      memory_(std::make_unique<PassingMemory>()),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  for (std::size_t rank = 0; rank < membership.members.size(); ++rank) {
    const std::string name = "member " + std::to_string(rank) + " (" + membership.members[rank].text() + ")";
    channels_.push_back(std::make_unique<Channel>(name));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kJoining;
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, joining_->descriptor(), &event);
  const timespec interval{0, std::chrono::nanoseconds(kBetweenPings).count()};
  const itimerspec times{interval, interval};
  timerfd_settime(timer_.get(), 0, &times, nullptr);
  event.data.u64 = kPings;
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
  if (joining_->complete()) joining_.reset();
}

Transport::~Transport() { abort(""); }

void Transport::watch(int member, bool is_new) {
  Channel& channel = *channels_[member];
  if (!channel.is_open()) return;
  const bool writing = channel.wants_to_write();
  if (!is_new && writing == watched_for_writing_[member]) return;
  watched_for_writing_[member] = writing;
  epoll_event event{};
  event.events = EPOLLIN | (writing ? EPOLLOUT : 0u);
  event.data.u64 = kFirstMember + static_cast<std::uint64_t>(member);
  epoll_ctl(events_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, channel.descriptor(), &event);
}

// Sends at once what nothing else waits in front of.
void Transport::flush(int member) {
  Channel& channel = *channels_[member];
  if (channel.is_open() && !watched_for_writing_[member]) channel.write();
  watch(member, false);
}

void Transport::send_part(int to, Tag tag, const void* data, std::size_t bytes, std::size_t total, Request* request) {
  if (total == 0) return request->move(0, 0);
  channels_[to]->send(tag, data, bytes, total, request);
  flush(to);
}

void Transport::receive(int from, Tag tag, void* data, std::size_t bytes, Request* request) {
  if (bytes == 0) return request->move(0, 0);
  Sink sink;
  sink.data = static_cast<char*>(data);
  channels_[from]->receive(tag, std::move(sink), bytes, request);
  flush(from);
}

void Transport::receive_pieces(int from, Tag tag, std::size_t bytes, std::size_t grain, Consumer consumer,
                               Request* request) {
  if (bytes == 0) return request->move(0, 0);
  channels_[from]->receive(tag, {nullptr, grain, std::move(consumer)}, bytes, request);
  flush(from);
}

void Transport::cancel(int member, const Request* request) { channels_[member]->cancel(request); }

bool Transport::progress() {
  if (aborted_) return false;
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  const int count = epoll_wait(events_.get(), events, kEvents, 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id == kJoining) {
      join();
      moved = true;
    } else if (id == kPings) {
      std::uint64_t ticks;
      (void)!read(timer_.get(), &ticks, sizeof ticks);
      ask();
      tell();
    } else {
      const int member = static_cast<int>(id - kFirstMember);
      Channel& channel = *channels_[member];
      moved |= channel.read(*memory_);
      hear(member);
      moved |= channel.write();  // also what was read may want an answer
      watch(member, false);
    }
  }
  return moved;
}

void Transport::join() {
  for (Joining::Joined& joined : joining_->progress()) {
    Channel& channel = *channels_[joined.rank];
    channel.open(std::move(joined.connection));
    channel.write();
    watch(joined.rank, true);
  }
  if (joining_->late()) {
    const std::vector<int> absent = joining_->absent();
    for (const int member : absent) {
      // Which of several is to blame is not known here: one of them may have given up because of another.
      std::string others;
      for (const int other : absent) others += other == member ? "" : (others.empty() ? "; nor did " : ", ") + name(other);
      channels_[member]->close("did not join within " + std::to_string(static_cast<int>(membership_.join_seconds)) +
                               " s: " + joining_->reason(member) + others);
    }
  }
  if (joining_->complete() || joining_->late()) joining_.reset();
}

// A member that waits asks everybody: the one to blame may be one that its neighbour waits for.
void Transport::ask() {
  bool waits = false;
  for (const auto& channel : channels_) waits = waits || channel->is_waited_for();
  if (!waits) return;
  for (int member = 0; member < size(); ++member) {
    if (!channels_[member]->is_open()) continue;
    channels_[member]->ping();
    flush(member);
  }
}

// Tells the members of what has been under way for a while that this one is in it.
void Transport::tell() {
  for (const auto& [id, entry] : agreement_.waiting(kBetweenPings)) {
    for (const int member : entry->ranks) {
      if (member == rank() || !channels_[member]->is_open()) continue;
      channels_[member]->say({id, entry->doing, true});
      flush(member);
    }
  }
}

void Transport::hear(int member) {
  for (const Channel::Said& said : channels_[member]->said()) {
    if (const auto answer = agreement_.hear(member, said.operation, said.doing, said.waits)) {
      channels_[member]->say({said.operation, *answer, false});
    }
  }
}

void Transport::abort(const std::string& reason) {
  if (aborted_) return;
  aborted_ = true;
  if (joining_ != nullptr) {
    for (Joining::Joined& half : joining_->half_joined()) channels_[half.rank]->open(std::move(half.connection));
  }
  joining_.reset();
  say_why(reason);
  for (const auto& channel : channels_) {
    channel->close("is not reached any more: " + (reason.empty() ? "this member has ended" : reason));
  }
}

// Sends the reason, and reads what still comes until the others close: what was not read when a connection is closed
// makes the kernel take back what was sent.
void Transport::say_why(const std::string& reason) {
  for (const auto& channel : channels_) {
    channel->drop_waiting();
    if (channel->is_open()) channel->leave(reason);
  }
  const Clock::time_point deadline = Clock::now() + kFarewell;
  std::vector<bool> is_shut(channels_.size());
  for (;;) {
    std::vector<pollfd> open;
    for (std::size_t member = 0; member < channels_.size(); ++member) {
      Channel& channel = *channels_[member];
      channel.read(*memory_);
      channel.write();
      if (!channel.is_open()) continue;
      const bool writes = channel.wants_to_write();
      if (!writes && !is_shut[member]) shutdown(channel.descriptor(), SHUT_WR);
      is_shut[member] = !writes;
      open.push_back({channel.descriptor(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (open.empty() || left <= 0) return;
    poll(open.data(), open.size(), static_cast<int>(left));
  }
}

void Transport::finish(double seconds) {
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  for (const auto& channel : channels_) {
    if (channel->is_open()) channel->leave("");
  }
  bool is_shut = false;
  for (;;) {
    progress();
    bool writes = false, open = false;
    for (const auto& channel : channels_) {
      writes = writes || channel->wants_to_write();
      open = open || channel->is_open();
    }
    if (!writes && !is_shut) {
      is_shut = true;
      for (const auto& channel : channels_) {
        if (channel->is_open()) shutdown(channel->descriptor(), SHUT_WR);
      }
    }
    const double left = Seconds(deadline - Clock::now()).count();
    if (!open || left <= 0) break;
    pollfd event{wait_descriptor(), POLLIN, 0};
    poll(&event, 1, static_cast<int>(left * 1000) + 1);
  }
  abort("");
}

}  // namespace tfdist::collectives

#include "joining.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>

namespace tfdist::collectives {
namespace {

constexpr std::uint64_t kListener = 0, kTimer = 1, kFirstStranger = 2;
constexpr std::size_t kMostStrangers = 256;
constexpr auto kBetweenCalls = std::chrono::milliseconds(20);

Nonce random_nonce() {
  Nonce nonce;
  std::size_t filled = 0;
  while (filled < nonce.size()) {
    const ssize_t count = getrandom(nonce.data() + filled, nonce.size() - filled, 0);
    if (count > 0) filled += static_cast<std::size_t>(count);
  }
  return nonce;
}

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace

Joining::Joining(const Membership& membership, Descriptor listener)
    : membership_(membership),
      expected_(membership.members.size(), membership.peers.empty()),
      joined_(membership.members.size()),
      deadline_(after(membership.join_seconds)),
      listener_(std::move(listener)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      next_id_(kFirstStranger) {
  for (const int peer : membership_.peers) expected_[peer] = true;
  expected_[membership_.rank] = false;
  missing_ = static_cast<int>(std::count(expected_.begin(), expected_.end(), true));
  for (int rank = 0; rank < membership_.rank; ++rank) {
    if (!expected_[rank]) continue;
    Call& call = calls_[rank];
    call.next = Clock::now();
  }
  // Those who call this one, and so are of a higher rank, are not looked up.
  const auto& members = membership_.members;
  if (!calls_.empty()) {
    resolver_ = std::make_unique<Resolver>(std::vector<Address>(members.begin(), members.begin() + membership_.rank),
                                           membership_.resolve);
  }
  if (listener_) watch(kListener, listener_.get(), EPOLLIN, true);
  const timespec interval{0, std::chrono::nanoseconds(kBetweenCalls).count()};
  const itimerspec times{interval, interval};
  timerfd_settime(timer_.get(), 0, &times, nullptr);
  watch(kTimer, timer_.get(), EPOLLIN, true);
  if (complete()) close_all();
}

void Joining::watch(std::uint64_t id, int descriptor, std::uint32_t events, bool is_new) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(events_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, &event);
}

std::vector<Joining::Joined> Joining::progress() {
  std::vector<Joined> joined;
  if (complete()) return joined;
  epoll_event events[64];
  const int count = epoll_wait(events_.get(), events, 64, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id == kListener) {
      accept_all();
    } else if (id == kTimer) {
      std::uint64_t ticks;
      (void)!read(timer_.get(), &ticks, sizeof ticks);
    } else if (const auto found = strangers_.find(id); found != strangers_.end()) {
      if (!advance(found->second, joined)) drop(id);
    }
  }
  const Clock::time_point now = Clock::now();
  std::vector<std::uint64_t> late;
  for (const auto& [id, stranger] : strangers_) {
    if (now >= stranger.deadline) late.push_back(id);
  }
  for (const std::uint64_t id : late) {
    const int rank = strangers_.at(id).rank;
    if (rank >= 0) calls_[rank].reason = "it has a connection, and says nothing";
    drop(id);
  }
  for (auto& [rank, one] : calls_) {
    if (!joined_[rank] && !one.under_way && now >= one.next) call(rank);
  }
  if (complete()) close_all();
  return joined;
}

void Joining::close_all() {
  strangers_.clear();
  incoming_.clear();
  resolver_.reset();
  listener_.reset();
  timer_.reset();
}

void Joining::accept_all() {
  for (;;) {
    Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection) {
      // Without free descriptors the one that has been silent for the longest time has to go.
      const bool crowded = errno == EMFILE || errno == ENFILE;
      if (crowded && !incoming_.empty()) drop(incoming_.front());
      if (errno == EINTR || errno == ECONNABORTED || (crowded && !incoming_.empty())) continue;
      return;
    }
    if (incoming_.size() >= kMostStrangers) drop(incoming_.front());
    configure(connection);
    const std::uint64_t id = next_id_++;
    Stranger& stranger = strangers_[id];
    stranger.connection = std::move(connection);
    stranger.stage = Stage::kAnswer;
    stranger.deadline = after(membership_.handshake_seconds);
    stranger.challenge.nonce = random_nonce();
    incoming_.push_back(id);
    watch(id, stranger.connection.get(), EPOLLIN, true);
    if (!put(stranger, &stranger.challenge, sizeof stranger.challenge)) drop(id);
  }
}

void Joining::call(int rank) {
  Call& call = calls_[rank];
  call.next = Clock::now() + kBetweenCalls;
  std::string error;
  const std::vector<SocketAddress> addresses = resolver_->find(static_cast<std::size_t>(rank), &error);
  if (addresses.empty()) {
    call.reason = error;
    return;
  }
  Descriptor connection = begin_connect(addresses[call.attempts++ % addresses.size()], &error);
  if (!connection) {
    call.reason = error;
    return;
  }
  call.under_way = true;
  const std::uint64_t id = next_id_++;
  Stranger& stranger = strangers_[id];
  stranger.connection = std::move(connection);
  stranger.stage = Stage::kConnect;
  stranger.rank = rank;
  stranger.deadline = after(membership_.handshake_seconds);
  watch(id, stranger.connection.get(), EPOLLOUT, true);
}

void Joining::drop(std::uint64_t id) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  if (const int rank = found->second.rank; rank >= 0) {
    calls_[rank].under_way = false;
    calls_[rank].next = Clock::now() + kBetweenCalls;
  } else {
    incoming_.remove(id);
  }
  strangers_.erase(found);
}

// Reads a part of a message of a fixed size. False when the other has closed.
bool Joining::fetch(Stranger& stranger, void* message, std::size_t bytes, bool* whole) {
  *whole = false;
  const ssize_t count =
      recv(stranger.connection.get(), static_cast<char*>(message) + stranger.received, bytes - stranger.received, 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  stranger.received += static_cast<std::size_t>(count);
  *whole = stranger.received == bytes;
  if (*whole) stranger.received = 0;
  return count > 0;
}

// The kernel takes a hundred bytes on a new connection at once; whoever has no room for them is no member.
bool Joining::put(Stranger& stranger, const void* message, std::size_t bytes) {
  return send(stranger.connection.get(), message, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool Joining::advance(Stranger& stranger, std::vector<Joined>& joined) {
  switch (stranger.stage) {
    case Stage::kConnect: {
      const int error = connect_error(stranger.connection);
      if (error != 0) {
        calls_[stranger.rank].reason = std::strerror(error);
        return false;
      }
      stranger.stage = Stage::kChallenge;
      for (auto& [id, one] : strangers_) {
        if (&one == &stranger) watch(id, stranger.connection.get(), EPOLLIN, false);
      }
      return true;
    }
    case Stage::kChallenge:
      return challenged(stranger);
    case Stage::kWelcome:
      return welcomed(stranger, joined);
    case Stage::kAnswer:
      return answered(stranger);
    case Stage::kConfirm:
      return confirmed(stranger, joined);
  }
  return false;
}

bool Joining::challenged(Stranger& stranger) {
  bool whole;
  if (!fetch(stranger, &stranger.challenge, sizeof stranger.challenge, &whole)) {
    calls_[stranger.rank].reason = "it closes the connection at once";
    return false;
  }
  if (!whole) return true;
  if (stranger.challenge.magic != kMagic) {
    calls_[stranger.rank].reason = "another program listens there";
    return false;
  }
  Claim claim;
  claim.generation = membership_.generation;
  claim.from = static_cast<std::uint32_t>(membership_.rank);
  claim.to = static_cast<std::uint32_t>(stranger.rank);
  claim.members = static_cast<std::uint32_t>(membership_.members.size());
  stranger.answer = answer_to(stranger.challenge, claim, random_nonce(), membership_.key);
  stranger.stage = Stage::kWelcome;
  return put(stranger, &stranger.answer, sizeof stranger.answer);
}

bool Joining::answered(Stranger& stranger) {
  bool whole;
  if (!fetch(stranger, &stranger.answer, sizeof stranger.answer, &whole)) return false;
  if (!whole) return true;
  const Answer& answer = stranger.answer;
  if (!proves(answer, stranger.challenge, membership_.key)) return false;
  const Claim& claim = answer.claim;
  if (claim.generation != membership_.generation || claim.to != static_cast<std::uint32_t>(membership_.rank) ||
      claim.members != membership_.members.size() || claim.from >= claim.members ||
      claim.from <= claim.to || !expected_[claim.from] || joined_[claim.from]) {
    return false;
  }
  stranger.welcome = welcome_for(answer, stranger.challenge, membership_.key);
  stranger.stage = Stage::kConfirm;
  return put(stranger, &stranger.welcome, sizeof stranger.welcome);
}

bool Joining::welcomed(Stranger& stranger, std::vector<Joined>& joined) {
  bool whole;
  if (!fetch(stranger, &stranger.welcome, sizeof stranger.welcome, &whole)) {
    calls_[stranger.rank].reason = "it refuses this member: its key, its number of members or its start of the job differs";
    return false;
  }
  if (!whole) return true;
  if (!proves(stranger.welcome, stranger.answer, stranger.challenge, membership_.key)) {
    calls_[stranger.rank].reason = "it does not have the key of this job";
    return false;
  }
  if (!put(stranger, &kConfirmed, sizeof kConfirmed)) return false;
  join(stranger, stranger.rank, joined);
  return false;
}

// Only now may bytes be sent: a caller that has lost patience has closed, and calls again on another connection.
bool Joining::confirmed(Stranger& stranger, std::vector<Joined>& joined) {
  bool whole;
  char byte = 0;
  if (!fetch(stranger, &byte, sizeof byte, &whole)) return false;
  if (!whole) return true;
  const int rank = static_cast<int>(stranger.answer.claim.from);
  if (byte == kConfirmed && !joined_[rank]) join(stranger, rank, joined);
  return false;
}

void Joining::join(Stranger& stranger, int rank, std::vector<Joined>& joined) {
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, stranger.connection.get(), nullptr);
  joined.push_back({rank, std::move(stranger.connection)});
  joined_[rank] = true;
  --missing_;
}

std::vector<int> Joining::absent() const {
  std::vector<int> absent;
  for (std::size_t rank = 0; rank < expected_.size(); ++rank) {
    if (expected_[rank] && !joined_[rank]) absent.push_back(static_cast<int>(rank));
  }
  return absent;
}

std::vector<Joining::Joined> Joining::half_joined() {
  std::vector<Joined> found;
  for (auto& [id, stranger] : strangers_) {
    const int rank = static_cast<int>(stranger.answer.claim.from);
    if (stranger.stage == Stage::kConfirm && !joined_[rank]) found.push_back({rank, std::move(stranger.connection)});
  }
  return found;
}

std::string Joining::reason(int rank) const {
  const auto found = calls_.find(rank);
  return found == calls_.end() ? "it has not connected" : found->second.reason;
}

}  // namespace tfdist::collectives

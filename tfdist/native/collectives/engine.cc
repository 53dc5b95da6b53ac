#include "engine.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <numeric>

#include "bell.h"
#include "standard_floats.h"

namespace tfdist::collectives {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kPatience{20};  // of a caller's thread, before the engine's takes over
constexpr microseconds kSpin{50};      // of the engine's thread, before it sleeps
constexpr microseconds kHaste{2};      // of both, where a member that is waited for may need their processor
constexpr milliseconds kLook{50};      // between looks at members while an operation waits for them
constexpr milliseconds kRest{1000};    // between heartbeats while there is nothing to do
constexpr int kPatientLooks = 20;      // at a cause that its member has begun to write
constexpr double kFarewellSeconds = 2; // that members on other hosts have to take what is still on its way to them

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Asks Linux for short turns on the processor for this thread, which then gets its next one as soon as it wakes up: it moves
// bytes for some microseconds, while threads that compute have turns of milliseconds. Linux before 6.12 knows nothing of
// that, and whatever is refused changes nothing.
void ask_for_short_turns() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } wanted{};  // as struct sched_attr of linux/sched/types.h was first, which not every system has
  if (syscall(SYS_sched_getattr, 0, &wanted, sizeof wanted, 0) != 0) return;
  if (wanted.policy != SCHED_OTHER && wanted.policy != SCHED_BATCH) return;
  wanted.runtime = 100000;  // nanoseconds, the least that there is
  syscall(SYS_sched_setattr, 0, &wanted, 0);
}

constexpr std::uint64_t kMeasurementKey = 0x6d656173757265;  // "measure"

// Whether so many members can run at the same time on the processors that this process may use.
bool can_run_together(std::size_t members) {
  cpu_set_t usable;
  return sched_getaffinity(0, sizeof usable, &usable) != 0 || members <= static_cast<std::size_t>(CPU_COUNT(&usable));
}

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Engine::Engine(Members members, std::shared_ptr<Segment> segment, std::unique_ptr<Transport> transport, Options options)
    : members_(std::move(members)),
      segment_(std::move(segment)),
      transport_(std::move(transport)),
      options_(options),
      together_(can_run_together(segment_->layout().members)),
      liveness_(segment_, members_.index_of_rank[members_.rank], options.silent_seconds) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "tfdist-native");
}

Engine::~Engine() { stop(); }

bool Engine::are_near(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) { return is_here(rank); });
}

Place Engine::place(const std::vector<int>& ranks) const {
  Place place;
  place.segment = segment_;
  for (const int rank : ranks) {
    if (!is_here(rank)) continue;
    if (rank == members_.rank) place.me = place.ranks.size();
    place.ranks.push_back(rank);
    place.members.push_back(members_.index_of_rank[rank]);
  }
  return place;
}

Hosts Engine::hosts(const std::vector<int>& ranks) const {
  std::unique_lock<std::mutex> lock(mutex_);
  Hosts hosts{transport_.get(), ranks, 0, {}, place(ranks), line_, algorithm_};
  lock.unlock();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == members_.rank) hosts.me = i;
    hosts.host.push_back(members_.hosts[ranks[i]]);
  }
  return hosts;
}

void Engine::use(Algorithm algorithm) {
  const std::lock_guard<std::mutex> guard(mutex_);
  algorithm_ = algorithm;
}

std::string Engine::measure() {
  if (transport_ == nullptr) return "";
  std::vector<int> all(members_.hosts.size());
  std::iota(all.begin(), all.end(), 0);
  Line line{};
  std::promise<std::string> measured;
  submit(far_measurement(hosts(all), next_id(kMeasurementKey), &line), all,
         [&](const std::string& error) { measured.set_value(error); });
  const std::string error = measured.get_future().get();
  const std::lock_guard<std::mutex> guard(mutex_);
  if (error.empty()) line_ = line;
  return error;
}

std::uint64_t Engine::next_id(std::uint64_t key) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return mixed(key ^ mixed(uses_[key]++));
}

void Engine::submit(std::unique_ptr<Operation> operation, std::vector<int> ranks, Done done) {
  const std::string broken = cause();
  if (!broken.empty()) {
    operation->fail(kBroken + broken);
    return done(operation->error());
  }
  const Clock::time_point begun = Clock::now();
  if (are_near(ranks)) {
    const StandardFloats floats;
    const microseconds patience = together_ ? kPatience : kHaste;
    Clock::time_point last = begun;
    while (operation->state() == State::kRunning && Clock::now() - last < patience) {
      if (operation->advance()) {
        last = Clock::now();
      } else {
        pause();
      }
    }
  }
  if (operation->state() != State::kRunning) return done(operation->error());
  Work work{std::move(operation), std::move(ranks), std::move(done), begun};
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!stopping_) {
      submitted_.push_back(std::move(work));
      work.operation = nullptr;
    }
  }
  if (work.operation != nullptr) {
    work.operation->fail(std::string(kBroken) + "they were stopped");
    return work.done(work.operation->error());
  }
  ring(me());
}

void Engine::run() {
  ask_for_short_turns();
  const StandardFloats floats;
  Clock::time_point moved = Clock::now(), looked = moved;
  while (!stopping_) {
    const std::uint32_t seen = me().bell.load(std::memory_order_seq_cst);
    const bool moves = advance_all();
    const Clock::time_point now = Clock::now();
    if (moves) moved = now;
    if (now - looked >= kLook) {  // also while something moves all the time, or others would take this member for lost
      look_after();
      looked = now;
    } else if (!moves && !live_.empty() && now - moved < (together_ ? kSpin : kHaste)) {
      pause();
    } else if (!moves) {
      rest(seen, live_.empty() && transport_ == nullptr ? kRest : kLook);
    }
  }
  fail_all(std::string(kBroken) + "they were stopped");
  close_transport();
}

// Sleeps until there may be something to do. The word that members of a host ring on and the connections to others cannot
// be waited for together: while operations are under way it looks at both, a thousand times a second.
void Engine::rest(std::uint32_t seen, milliseconds limit) {
  if (transport_ == nullptr || live_.empty()) {
    sleep(me(), seen, live_.empty() ? kIdle : kWaiting, std::chrono::nanoseconds(limit).count());
  } else if (me().bell.load(std::memory_order_seq_cst) == seen) {
    pollfd readable{transport_->wait_descriptor(), POLLIN, 0};
    poll(&readable, 1, 1);
  }
}

// Tells members on other hosts that this one ends, and why if it is not the usual end.
void Engine::close_transport() {
  if (transport_ == nullptr) return;
  const std::string broken = cause();
  if (broken.empty()) {
    transport_->finish(kFarewellSeconds);
  } else {
    transport_->abort(broken);
  }
}

bool Engine::advance_all() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (Work& work : submitted_) live_.push_back(std::move(work));
    submitted_.clear();
  }
  bool moved = transport_ != nullptr && transport_->progress();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    Operation& operation = *live_[i].operation;
    moved |= operation.advance();
    if (operation.state() != State::kRunning) {
      // Over a connection nothing fails but with a member that is lost, or that does something else: that ends all.
      const bool ends = operation.state() == State::kFailed && !are_near(live_[i].ranks);
      if (ends) end(operation.error());
      const std::string cause_of_all = ends ? cause() : "";
      live_[i].done(ends ? kBroken + (cause_of_all.empty() ? operation.error() : cause_of_all) : operation.error());
    } else if (kept++ != i) {
      live_[kept - 1] = std::move(live_[i]);
    }
  }
  live_.resize(kept);
  return moved;
}

// Shows that this member lives, and ends what cannot come to an end by itself.
void Engine::look_after() {
  liveness_.beat();
  if (segment_->header().broken.load(std::memory_order_acquire) == 1) ++looks_at_half_a_cause_;
  const std::string broken = cause();
  if (!broken.empty()) {
    fail_all(kBroken + broken);
    return close_transport();
  }
  {
    const std::string waits = oldest_wait();
    const std::lock_guard<std::mutex> guard(mutex_);
    waits_for_ = waits;
  }
  if (live_.empty()) {
    faults_ = 0;
    return;
  }
  liveness_.look();
  if (fault().empty()) {
    faults_ = 0;
    return;
  }
  advance_all();  // a member that has gone may have left its part complete
  const std::string found = fault();
  // An operation that is complete may still be here, because another member had the directory: it has gone by the next look.
  faults_ = found.empty() ? 0 : faults_ + 1;
  if (faults_ > 1) end(found);
}

// What has become of the member that has the directory of this host, if that can have kept it; any may, also one that is in
// none of the operations under way.
std::string Engine::fate_of_the_lock() {
  const Counter& lock = segment_->header().lock;
  const std::uint64_t holder = lock.load(std::memory_order_acquire);
  if (holder == 0) return "";
  const std::string fate = liveness_.fate(holder - 1);
  if (fate.empty() || lock.load(std::memory_order_acquire) != holder) return "";
  for (std::size_t rank = 0; rank < members_.hosts.size(); ++rank) {
    if (is_here(static_cast<int>(rank)) && members_.index_of_rank[rank] == holder - 1) {
      return "member " + std::to_string(rank) + " " + fate;
    }
  }
  return "";
}

// Why an operation cannot come to an end by itself; empty if none is known.
std::string Engine::fault() {
  if (const std::string fate = fate_of_the_lock(); !fate.empty()) return fate;
  for (const Work& work : live_) {
    for (const int rank : work.ranks) {
      if (!is_here(rank)) {
        const double silent = transport_->silent_seconds(rank);
        if (options_.silent_seconds <= 0 || silent < options_.silent_seconds) continue;
        return transport_->name(rank) + " has not been heard of for " + std::to_string(static_cast<long>(silent)) + " s";
      }
      const std::string fate = liveness_.fate(members_.index_of_rank[rank]);
      if (!fate.empty()) return "member " + std::to_string(rank) + " " + fate;
    }
    const std::chrono::duration<double> took = Clock::now() - work.begun;
    if (options_.timeout_seconds <= 0 || took.count() <= options_.timeout_seconds) continue;
    const std::string absent = work.operation->waits_for();
    char limit[32];
    std::snprintf(limit, sizeof limit, "%g s", options_.timeout_seconds);
    return work.operation->what() + " is not done within " + limit + (absent.empty() ? "" : ": " + absent);
  }
  return "";
}

std::string Engine::oldest_wait() const {
  const auto older = [](const Work& one, const Work& other) { return one.begun < other.begun; };
  const auto oldest = std::min_element(live_.begin(), live_.end(), older);
  if (oldest == live_.end()) return "";
  const std::string absent = oldest->operation->waits_for();
  return absent.empty() ? "" : oldest->operation->what() + " is " + absent;
}

std::string Engine::waits_for() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return waits_for_;
}

void Engine::abort(const std::string& reason) {
  if (!is_own()) return;
  end("member " + std::to_string(members_.rank) + " gave up: " + reason);
}

// Tells all members the cause, unless one has told already; their threads do the rest.
void Engine::end(const std::string& cause) {
  Header& head = segment_->header();
  std::uint64_t whole = 0;
  if (head.broken.compare_exchange_strong(whole, 1)) {
    std::size_t size = std::min(cause.size(), sizeof head.reason - 1);
    // Not within a character of UTF-8: Python could not read it, and would raise an error of its own.
    while (size > 0 && size < cause.size() && (cause[size] & 0xC0) == 0x80) --size;
    cause.copy(head.reason, size);
    head.reason[size] = '\0';
    head.broken.store(2, std::memory_order_release);
  }
  for (std::size_t i = 0; i < segment_->layout().members; ++i) ring(segment_->member(i));
}

// Why nothing travels any more; empty while it does, and while the member that has found out is still writing it down.
std::string Engine::cause() {
  Header& head = segment_->header();
  const std::uint64_t broken = head.broken.load(std::memory_order_acquire);
  if (broken == 2) return head.reason;
  return looks_at_half_a_cause_ > kPatientLooks ? "a member found them broken, and ended before it could say why" : "";
}

void Engine::fail_all(const std::string& error) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (Work& work : submitted_) live_.push_back(std::move(work));
    submitted_.clear();
  }
  std::vector<Work> failed;
  failed.swap(live_);
  for (Work& work : failed) {
    work.operation->fail(error);
    work.done(work.operation->error());
  }
}

void Engine::stop() {
  if (!is_own()) return;
  const std::lock_guard<std::mutex> guard(stop_mutex_);
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> submitting(mutex_);
    stopping_ = true;
  }
  ring(me());
  thread_.join();
  me().left.store(1, std::memory_order_release);
  for (std::size_t i = 0; i < segment_->layout().members; ++i) ring(segment_->member(i));
}

}  // namespace tfdist::collectives

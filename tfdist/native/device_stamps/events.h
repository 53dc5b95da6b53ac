// Times at which a device has done what its stream was given: events, which nobody waits for.
//
// An event is recorded on a stream and is reached when all before it is done. A thread of its own asks which events were
// reached, twice in a millisecond while there are any. It tells the time between an event and an anchor, an event on an
// idle stream whose time on the wall clock is known. Anchors are renewed: milliseconds between events are float32, and
// the clocks of host and device drift.

#ifndef TFDIST_NATIVE_DEVICE_STAMPS_EVENTS_H_
#define TFDIST_NATIVE_DEVICE_STAMPS_EVENTS_H_

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "driver.h"

namespace tfdist::device_stamps {

// Seconds of the wall clock, as tf.timestamp has them.
inline double now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Where a row of stamps is written; see ../stamps/rows.h.
struct Sink {
  void (*set)(std::int64_t rows, std::int64_t number, std::size_t column, double value) = nullptr;
  void (*leave)(std::int64_t rows, std::int64_t number) = nullptr;
};

// What a mark writes into its row: the time, and a number that the device has computed, if there is one.
struct Target {
  std::int64_t rows = 0, number = 0;
  std::size_t column = 0, place = 0;
};

class Events {
 public:
  // Of a driver and a sink that stay.
  Events(const Driver& driver, const Sink& sink) : driver_(driver), sink_(sink) {}

  ~Events() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    for (Mark& mark : marks_) give_back(&mark);
    for (const auto& [context, events] : events_) {
      for (const Event event : events) driver_.end_event(event);
    }
    for (void* const block : blocks_) driver_.end_memory(block);
  }

  // Marks a place in a stream, in whose context the calling thread is; with the address of a float64 of the device, or 0.
  // The row is left in any case, now where there is no event.
  void mark(const Target& target, Stream stream, Memory value) {
    Mark made{target, nullptr, nullptr, nullptr};
    if (!record(&made, stream, value)) {
      give_back(&made);
      sink_.leave(target.rows, target.number);
      return;
    }
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      marks_.push_back(std::move(made));
      if (!thread_.joinable()) thread_ = std::thread([this] { look(); });
      if (marks_.size() > 1) return;  // it looks already
    }
    changed_.notify_one();
  }

  // How many marks have no time yet.
  std::size_t pending() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return marks_.size();
  }

  // How often an anchor was made.
  int anchors() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return made_;
  }

 private:
  static constexpr auto kLook = std::chrono::microseconds(500);
  static constexpr double kAnchorSeconds = 1;  // in which float32 has steps of a tenth of a microsecond
  static constexpr int kReadings = 5;
  static constexpr std::size_t kNumbers = 1024;
  static constexpr double kClose = 5e-5;

  struct Anchor {
    const Driver* driver;
    Context context;
    Stream stream;
    Event event = nullptr;
    double time = 0;  // at which it was reached

    ~Anchor() {
      if (event != nullptr) driver->end_event(event);
    }
  };

  struct Mark {
    Target target;
    Event event;
    double* number;
    std::shared_ptr<const Anchor> anchor;
  };

  bool record(Mark* mark, Stream stream, Memory value) {
    Context context = nullptr;
    if (driver_.context(&context) != kSuccess || context == nullptr) return false;
    mark->anchor = anchor_of(context);
    if (mark->anchor == nullptr) return false;
    if (value != 0) {
      mark->number = place_of_number();
      if (mark->number == nullptr) return false;
      if (driver_.copy(mark->number, value, sizeof(double), stream) != kSuccess) return false;
    }
    mark->event = take(&events_of(context));
    if (mark->event == nullptr && driver_.make_event(&mark->event, 0) != kSuccess) {
      mark->event = nullptr;
      return false;
    }
    return driver_.record(mark->event, stream) == kSuccess;
  }

  // A place for a number; to make some holds up the device, so many are made at once.
  double* place_of_number() {
    double* const found = take(&numbers_);
    if (found != nullptr) return found;
    void* block = nullptr;
    if (driver_.make_memory(&block, kNumbers * sizeof(double), 0) != kSuccess) return nullptr;
    const std::lock_guard<std::mutex> guard(kept_);
    blocks_.push_back(block);
    for (std::size_t i = 1; i < kNumbers; ++i) numbers_.push_back(static_cast<double*>(block) + i);
    return static_cast<double*>(block);
  }

  // The anchor of a context, made by the first mark and renewed by the thread.
  std::shared_ptr<const Anchor> anchor_of(Context context) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& one : anchors_) {
      if (one->context == context) return one;
    }
    Stream stream = nullptr;
    if (driver_.make_stream(&stream, kDoesNotBlock) != kSuccess) return nullptr;
    auto made = anchored(context, stream);
    if (made != nullptr) anchors_.push_back(made), ++made_;
    return made;
  }

  // An event on an idle stream, reached between two looks at the clock; made anew where these lie far apart.
  std::shared_ptr<const Anchor> anchored(Context context, Stream stream) const {
    auto made = std::make_shared<Anchor>(Anchor{&driver_, context, stream});
    if (driver_.make_event(&made->event, 0) != kSuccess) return made->event = nullptr, nullptr;
    for (int reading = 0; reading < kReadings; ++reading) {
      const double before = now();
      if (driver_.record(made->event, stream) != kSuccess || driver_.wait(made->event) != kSuccess) return nullptr;
      const double took = now() - before;
      made->time = before + took / 2;
      if (took < kClose) break;
    }
    return made;
  }

  void look() {
    std::unique_lock<std::mutex> guard(mutex_);
    while (!ends_) {
      changed_.wait(guard, [this] { return ends_ || !marks_.empty(); });
      while (!ends_ && !marks_.empty() && settle(&guard)) {
      }
      renew(&guard);
      if (!ends_ && !marks_.empty()) changed_.wait_for(guard, kLook, [this] { return ends_; });
    }
  }

  // Writes the first mark, if its event was reached or cannot be; the lock is let go of meanwhile.
  bool settle(std::unique_lock<std::mutex>* guard) {
    Mark& first = marks_.front();  // it stays: others are put behind it
    guard->unlock();
    float milliseconds = 0;
    driver_.enter(first.anchor->context);
    const int state = driver_.query(first.event);
    if (state == kNotReady) return guard->lock(), false;
    const Target& target = first.target;
    if (state == kSuccess && driver_.elapsed(&milliseconds, first.anchor->event, first.event) == kSuccess) {
      sink_.set(target.rows, target.number, target.column, first.anchor->time + 1e-3 * static_cast<double>(milliseconds));
      if (first.number != nullptr) sink_.set(target.rows, target.number, target.place, *first.number);
    }
    sink_.leave(target.rows, target.number);
    give_back(&first);
    guard->lock();
    marks_.pop_front();
    return true;
  }

  void renew(std::unique_lock<std::mutex>* guard) {
    for (std::size_t i = 0; i < anchors_.size(); ++i) {
      const std::shared_ptr<const Anchor> old = anchors_[i];
      if (now() - old->time < kAnchorSeconds) continue;
      guard->unlock();
      driver_.enter(old->context);
      auto made = anchored(old->context, old->stream);
      guard->lock();
      if (made != nullptr) anchors_[i] = made, ++made_;
    }
  }

  // Events and memory are used again: to make them takes longer than all else.
  void give_back(Mark* mark) {
    const std::lock_guard<std::mutex> guard(kept_);
    if (mark->event != nullptr && mark->anchor != nullptr) events_of_locked(mark->anchor->context).push_back(mark->event);
    if (mark->number != nullptr) numbers_.push_back(mark->number);
  }

  template <typename T>
  T take(std::vector<T>* from) {
    const std::lock_guard<std::mutex> guard(kept_);
    if (from->empty()) return nullptr;
    T found = from->back();
    from->pop_back();
    return found;
  }

  std::vector<Event>& events_of(Context context) {
    const std::lock_guard<std::mutex> guard(kept_);
    return events_of_locked(context);
  }

  std::vector<Event>& events_of_locked(Context context) {
    for (auto& [its, events] : events_) {
      if (its == context) return events;
    }
    return events_.emplace_back(context, std::vector<Event>()).second;
  }

  const Driver& driver_;
  const Sink& sink_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Mark> marks_;
  std::vector<std::shared_ptr<const Anchor>> anchors_;
  int made_ = 0;
  bool ends_ = false;
  std::thread thread_;
  std::mutex kept_;
  std::deque<std::pair<Context, std::vector<Event>>> events_;  // a deque moves none of them
  std::vector<double*> numbers_;
  std::vector<void*> blocks_;
};

}  // namespace tfdist::device_stamps

#endif  // TFDIST_NATIVE_DEVICE_STAMPS_EVENTS_H_

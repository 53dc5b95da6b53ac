// Threads of this process that help whoever has much to do.

#ifndef TFDIST_NATIVE_COLLECTIVES_HELPERS_H_
#define TFDIST_NATIVE_COLLECTIVES_HELPERS_H_

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "standard_floats.h"

namespace tfdist::collectives {

class Helpers {
 public:
  explicit Helpers(std::size_t helpers) {
    for (std::size_t i = 0; i < helpers; ++i) threads_.emplace_back([this] { help(); });
  }
  ~Helpers() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      ends_ = true;
    }
    called_.notify_all();
    for (std::thread& helper : threads_) helper.join();
  }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  // Calls part(0) ... part(parts - 1), in no order, in this thread and in those of helpers that have nothing to do. All
  // have returned when it does. It never waits for a helper to come, so it may be called by any number of threads.
  void run(std::size_t parts, const std::function<void(std::size_t)>& part) {
    Job job{parts, part};
    if (parts > 1 && !threads_.empty()) {
      const std::lock_guard<std::mutex> guard(mutex_);
      jobs_.push_back(&job);
      called_.notify_all();
    }
    job.work();
    if (parts <= 1 || threads_.empty()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
    left_.wait(lock, [&job] { return job.helpers == 0; });
  }

 private:
  struct Job {
    const std::size_t parts;
    const std::function<void(std::size_t)>& part;
    std::atomic<std::size_t> next{0};
    std::size_t helpers = 0;  // by mutex_

    void work() {
      const StandardFloats floats;
      for (std::size_t i = next++; i < parts; i = next++) part(i);
    }
  };

  void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      called_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (ends_) return;
      Job& job = *jobs_.front();
      ++job.helpers;
      lock.unlock();
      job.work();
      lock.lock();
      jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());  // no part is left
      if (--job.helpers == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable called_, left_;
  std::vector<Job*> jobs_;  // by mutex_: those that helpers may still join
  bool ends_ = false;       // by mutex_
  std::vector<std::thread> threads_;
};

// The helpers of this process; a fork of it has none and makes its own. Never destroyed: threads may still run when
// the process ends.
inline Helpers& helpers_of_process() {
  constexpr std::size_t kMost = 15;
  struct Own {
    pid_t pid = 0;
    Helpers* helpers = nullptr;
  };
  static auto* const mutex = new std::mutex;
  static auto* const own = new Own;
  const std::lock_guard<std::mutex> guard(*mutex);
  if (own->pid != getpid()) {
    const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
    *own = {getpid(), new Helpers(std::min(processors - 1, kMost))};
  }
  return *own->helpers;
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_HELPERS_H_

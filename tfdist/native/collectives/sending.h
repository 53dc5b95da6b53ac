// A send that is under way: what it sends is kept for it, and who has started it goes on, and asks later how it has ended.

#ifndef TFDIST_NATIVE_COLLECTIVES_SENDING_H_
#define TFDIST_NATIVE_COLLECTIVES_SENDING_H_

#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace tfdist::collectives {

class Sending {
 public:
  using Told = std::function<void(const std::string& error)>;  // empty: the other member has all of it

  // It has ended; called once, from any thread.
  void end(const std::string& error) {
    Told told;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      has_ended_ = true;
      error_ = error;
      told.swap(told_);
    }
    if (told) told(error);
  }

  // Calls a function when it has ended, at once if it has; called once.
  void when_ended(Told told) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (!has_ended_) {
        told_ = std::move(told);
        return;
      }
    }
    told(error_);
  }

 private:
  std::mutex mutex_;
  bool has_ended_ = false;
  std::string error_;
  Told told_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SENDING_H_

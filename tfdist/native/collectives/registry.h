// The engines, segments, sockets and sends of this process, by the numbers that Python and graphs know them by. Never
// destroyed: a kernel may still run when the process ends.

#ifndef TFDIST_NATIVE_COLLECTIVES_REGISTRY_H_
#define TFDIST_NATIVE_COLLECTIVES_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine.h"
#include "replicas.h"
#include "segment.h"
#include "sending.h"
#include "socket.h"

namespace tfdist::collectives {

template <typename T>
class Numbered {
 public:
  std::int64_t add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> guard(mutex_);
    objects_[++last_] = std::move(object);
    return last_;
  }
  std::shared_ptr<T> find(std::int64_t number) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> take(std::int64_t number) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<T>> objects_;
};

inline Numbered<Engine>& engines() {
  static auto* const all = new Numbered<Engine>;
  return *all;
}

inline Numbered<Replica>& replicas() {
  static auto* const all = new Numbered<Replica>;
  return *all;
}

inline Numbered<Segment>& segments() {
  static auto* const all = new Numbered<Segment>;
  return *all;
}

inline Numbered<Descriptor>& listeners() {
  static auto* const all = new Numbered<Descriptor>;
  return *all;
}

// Those of a step that fails before it asks how they have ended stay here.
inline Numbered<Sending>& sends() {
  static auto* const all = new Numbered<Sending>;
  return *all;
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_REGISTRY_H_

// Files mapped into memory, each once for all kernels of the process, for as long as one of them keeps it.

#ifndef TFDIST_NATIVE_MAPS_H_
#define TFDIST_NATIVE_MAPS_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tfdist {

// What tells that a path still leads to the file, in the state, that was mapped.
using Identity = std::tuple<dev_t, ino_t, off_t, time_t, long>;

inline Identity IdentityOf(const struct stat& about) {
  return {about.st_dev, about.st_ino, about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec};
}

class FileMap {
 public:
  FileMap(const uint8_t* data, uint64_t size, Identity identity)
      : data_(data), size_(size), identity_(std::move(identity)) {}
  ~FileMap() {
    if (size_ > 0) munmap(const_cast<uint8_t*>(data_), size_);
  }
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  const Identity& identity() const { return identity_; }

 private:
  const uint8_t* const data_;
  const uint64_t size_;
  const Identity identity_;
};

using SharedMap = std::shared_ptr<const FileMap>;

// All maps of the process. It keeps none alive.
class MapTable {
 public:
  static MapTable& Get() {
    static MapTable* table = new MapTable;  // never destroyed: kernels may outlive static objects
    return *table;
  }

  // The map of the file that the path leads to now; nullptr with the error's number where it cannot be had.
  SharedMap Open(const std::string& path, int* error) {
    // Without O_NONBLOCK opening a pipe would wait for a writer.
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about;
    if (file < 0 || fstat(file, &about) != 0) {
      *error = errno;
      if (file >= 0) close(file);
      return nullptr;
    }
    SharedMap map;
    if (!S_ISREG(about.st_mode)) {
      *error = EINVAL;
    } else if (map = Find(IdentityOf(about)); map == nullptr) {
      map = Map(file, about, error);
    }
    close(file);
    return map;
  }

  int64_t Count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    for (const auto& entry : maps_) count += entry.second.expired() ? 0 : 1;
    return count;
  }

 private:
  SharedMap Find(const Identity& identity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = maps_.find(identity);
    return found == maps_.end() ? nullptr : found->second.lock();
  }

  SharedMap Map(int file, const struct stat& about, int* error) {
    const auto size = static_cast<uint64_t>(about.st_size);
    void* data = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0) : nullptr;
    if (data == MAP_FAILED) {
      *error = errno;
      return nullptr;
    }
    auto map = std::make_shared<const FileMap>(static_cast<const uint8_t*>(data), size, IdentityOf(about));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (maps_.size() >= crowded_) {  // not at each file, which would take a time that grows with all of them
      for (auto entry = maps_.begin(); entry != maps_.end();) {
        entry = entry->second.expired() ? maps_.erase(entry) : std::next(entry);
      }
      crowded_ = 2 * maps_.size() + 1;
    }
    auto& place = maps_[map->identity()];
    if (SharedMap other = place.lock()) return other;  // another thread was first
    place = map;
    return map;
  }

  std::mutex mutex_;
  std::map<Identity, std::weak_ptr<const FileMap>> maps_;
  std::size_t crowded_ = 1;  // how many entries are looked through for those that are expired
};

// The maps that one kernel keeps from call to call.
class KeptMaps {
 public:
  KeptMaps() {
    const std::lock_guard<std::mutex> lock(AllMutex());
    All().insert(this);
  }
  ~KeptMaps() {
    const std::lock_guard<std::mutex> lock(AllMutex());
    All().erase(this);
  }
  KeptMaps(const KeptMaps&) = delete;
  KeptMaps& operator=(const KeptMaps&) = delete;

  // The map of a path; asks the file system every time, since a file may have been replaced or cut short.
  SharedMap Get(const std::string& path, int* error) {
    SharedMap map;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = maps_.find(path);
      if (found != maps_.end()) map = found->second;
    }
    struct stat about;
    if (map != nullptr && stat(path.c_str(), &about) == 0 && map->identity() == IdentityOf(about)) return map;
    map = MapTable::Get().Open(path, error);
    if (map == nullptr && *error == ENOMEM) {  // a process may have some 65 000 maps
      Clear();
      map = MapTable::Get().Open(path, error);
    }
    SharedMap before;  // unmapped, if this was its last use, after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    if (map == nullptr) {
      if (const auto found = maps_.find(path); found != maps_.end()) {
        before.swap(found->second);
        maps_.erase(found);
      }
      return map;
    }
    before = std::exchange(maps_[path], map);
    return map;
  }

  void Clear() {
    std::unordered_map<std::string, SharedMap> before;
    const std::lock_guard<std::mutex> lock(mutex_);
    before.swap(maps_);
  }

  // Calls that are under way keep what they use until they end.
  static void ClearAll() {
    const std::lock_guard<std::mutex> lock(AllMutex());
    for (KeptMaps* kept : All()) kept->Clear();
  }

 private:
  static std::mutex& AllMutex() {
    static std::mutex* mutex = new std::mutex;
    return *mutex;
  }
  static std::unordered_set<KeptMaps*>& All() {
    static auto* all = new std::unordered_set<KeptMaps*>;
    return *all;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, SharedMap> maps_;
};

}  // namespace tfdist

#endif  // TFDIST_NATIVE_MAPS_H_

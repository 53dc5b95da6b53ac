// Memory that operations need for a while, kept for the next: memory fresh from the kernel costs a page fault per page.

#ifndef TFDIST_NATIVE_COLLECTIVES_BUFFERS_H_
#define TFDIST_NATIVE_COLLECTIVES_BUFFERS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <utility>

namespace tfdist::collectives {

class Buffers {
 public:
  // Gives itself back when it ends; the Buffers it is from has to be there still.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Buffer() {
      if (data_ != nullptr) owner_->put(data_, bytes_);
    }

    char* data() const { return data_; }

   private:
    friend class Buffers;
    Buffer(Buffers* owner, char* data, std::size_t bytes) : owner_(owner), data_(data), bytes_(bytes) {}

    Buffers* owner_ = nullptr;
    char* data_ = nullptr;
    std::size_t bytes_ = 0;
  };

  Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (const auto& [bytes, data] : kept_) operator delete(data, std::align_val_t(kAlignment));
  }

  Buffer take(std::size_t bytes) {
    const auto found = kept_.lower_bound(bytes);
    if (found != kept_.end() && found->first / 2 <= bytes) {
      Buffer buffer(this, found->second, found->first);
      kept_bytes_ -= found->first;
      kept_.erase(found);
      return buffer;
    }
    return {this, static_cast<char*>(operator new(bytes, std::align_val_t(kAlignment))), bytes};
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kMostKept = std::size_t{256} << 20;

  void put(char* data, std::size_t bytes) {
    if (kept_bytes_ + bytes > kMostKept) {
      operator delete(data, std::align_val_t(kAlignment));
      return;
    }
    kept_.emplace(bytes, data);
    kept_bytes_ += bytes;
  }

  std::multimap<std::size_t, char*> kept_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_BUFFERS_H_

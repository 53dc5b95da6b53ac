// Rows of numbers that steps write and the host reads; nobody waits for anybody.
//
// A row is open until all that write into it have done so, and is then copied into a ring of the last rows. The ring's
// places have numbers: one that is being written to, or was meanwhile, is left out by whoever reads it.

#ifndef TFDIST_NATIVE_STAMPS_ROWS_H_
#define TFDIST_NATIVE_STAMPS_ROWS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tfdist::stamps {

class Rows {
 public:
  static constexpr std::size_t kOpen = 64;

  // `open` steps may be under way at once; on processors one or two are.
  Rows(std::size_t rows, std::size_t width, std::size_t open = kOpen)
      : width_(width), ring_(rows), values_(rows * width), open_(open) {
    for (Open& one : open_) one.values = std::vector<std::atomic<double>>(width);
  }

  std::size_t rows() const { return ring_.size(); }
  std::size_t width() const { return width_; }

  // Opens a row of zeros; its number. One that was opened so many rows before and has not ended is given up, as that of a
  // step that has failed.
  std::int64_t begin() {
    const std::int64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    Open& one = place(number);
    if (one.number.exchange(-1, std::memory_order_acq_rel) >= 0 && one.left.load(std::memory_order_acquire) > 0) {
      pending_.fetch_sub(1, std::memory_order_release);  // it ended, and somebody never left
    }
    for (auto& value : one.values) value.store(0, std::memory_order_relaxed);
    one.left.store(0, std::memory_order_relaxed);
    one.number.store(number, std::memory_order_release);
    return number;
  }

  // Writes into a row that is open; of another one nothing is written.
  void set(std::int64_t number, std::size_t column, double value) {
    Open& one = place(number);
    if (column >= width_ || one.number.load(std::memory_order_acquire) != number) return;
    one.values[column].store(value, std::memory_order_relaxed);
  }

  // One of those that write into a row has done so.
  void leave(std::int64_t number) { add(number, -1); }

  // How many do, beside the one that calls this, which has done so. They may have left before, or leave later.
  void end(std::int64_t number, std::int64_t others) {
    if (place(number).number.load(std::memory_order_acquire) != number) return;
    pending_.fetch_add(1, std::memory_order_relaxed);
    add(number, others);
  }

  // How many rows are to be whole soon: their steps have ended.
  std::int64_t pending() const { return pending_.load(std::memory_order_acquire); }

  // Copies the ring; how many rows have ended. Those that are not whole are zeros.
  std::int64_t read(double* into) const {
    const auto size = static_cast<std::int64_t>(ring_.size());
    const std::int64_t claimed = claimed_.load(std::memory_order_acquire);
    std::int64_t number = claimed > size ? claimed - size : 0;
    for (; number < claimed; ++number) {
      const auto slot = static_cast<std::size_t>(number % size);
      const std::int64_t before = ring_[slot].load(std::memory_order_acquire);
      if (before == -number - 1 || (before >= 0 && before <= number)) break;  // it comes the next time, as those behind it
      double* const row = into + slot * width_;
      for (std::size_t i = 0; i < width_; ++i) row[i] = values_[slot * width_ + i].load(std::memory_order_acquire);
      if (before != number + 1 || ring_[slot].load(std::memory_order_relaxed) != before) {
        for (std::size_t i = 0; i < width_; ++i) row[i] = 0;
      }
    }
    return number;
  }

 private:
  struct Open {
    std::atomic<std::int64_t> number{-1};
    std::atomic<std::int64_t> left{0};  // who has not left; below 0 while it is not known how many there are
    std::vector<std::atomic<double>> values;
  };

  Open& place(std::int64_t number) { return open_[static_cast<std::size_t>(number) % open_.size()]; }

  void add(std::int64_t number, std::int64_t count) {
    Open& one = place(number);
    if (one.number.load(std::memory_order_acquire) != number) return;
    if (one.left.fetch_add(count, std::memory_order_acq_rel) + count == 0) keep(one);
  }

  void keep(Open& one) {
    const std::int64_t number = claimed_.fetch_add(1, std::memory_order_acq_rel);
    const auto slot = static_cast<std::size_t>(number) % ring_.size();
    ring_[slot].exchange(-number - 1, std::memory_order_acq_rel);
    // each write is seen no later than the number that follows it, and no sooner than the one before it
    for (std::size_t i = 0; i < width_; ++i) {
      values_[slot * width_ + i].store(one.values[i].load(std::memory_order_relaxed), std::memory_order_release);
    }
    ring_[slot].store(number + 1, std::memory_order_release);
    pending_.fetch_sub(1, std::memory_order_release);
  }

  const std::size_t width_;
  std::atomic<std::int64_t> next_{0}, claimed_{0}, pending_{0};
  std::vector<std::atomic<std::int64_t>> ring_;  // what is in each place, counted from 1; below 0 while it is written
  std::vector<std::atomic<double>> values_;
  std::vector<Open> open_;
};

}  // namespace tfdist::stamps

#endif  // TFDIST_NATIVE_STAMPS_ROWS_H_

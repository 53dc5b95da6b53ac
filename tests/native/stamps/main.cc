// Checks rows and sums of squares by themselves, without TensorFlow, for sanitizers and other processors: `stamps`.
//
//   whole     rows that many threads write at once, while another reads: none is torn, none is lost
//   given up  a row that never ends takes nothing from those after it
//   squares   of every length and dtype, against float64
//
// It ends with 0 if everything was right, and says what was not.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../../tfdist/native/stamps/rows.h"
#include "../../../tfdist/native/stamps/squares.h"

namespace {

using namespace tfdist;
using stamps::Rows;

std::atomic<int> wrong{0};

void require(bool is_so, const std::string& what) {
  if (is_so) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

constexpr std::size_t kWidth = 26;

// Looks at a ring; returns how many rows have ended, and adds those that are new to `seen`.
std::int64_t look(const Rows& rows, std::int64_t known, std::vector<int>* seen) {
  std::vector<double> ring(rows.rows() * rows.width());
  const std::int64_t count = rows.read(ring.data());
  for (std::int64_t number = std::max(known, count - static_cast<std::int64_t>(rows.rows())); number < count; ++number) {
    const double* row = &ring[static_cast<std::size_t>(number) % rows.rows() * rows.width()];
    for (std::size_t i = 1; i < rows.width(); ++i) require(row[i] == row[0], "a row is torn");
    if (row[0] > 0) ++seen->at(static_cast<std::size_t>(row[0]));
  }
  return count;
}

void whole() {
  constexpr int kThreads = 4, kEach = 3000;
  Rows rows(64, kWidth);
  std::vector<int> seen(kThreads * kEach + 1);
  std::atomic<int> writing{kThreads};
  std::atomic<int> steps[kThreads] = {};
  // a row is given up when 64 have been opened after it, so none is far ahead
  const auto is_ahead = [&steps](int step) {
    return std::any_of(std::begin(steps), std::end(steps), [step](const auto& one) { return step > one + 8; });
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int step = 1; step <= kEach; ++step) {
        while (is_ahead(step)) std::this_thread::yield();
        const std::int64_t number = rows.begin();
        std::thread other;
        const auto write = [&rows, number, value = thread * kEach + step](std::size_t begin, std::size_t end) {
          for (std::size_t i = begin; i < end; ++i) rows.set(number, i, value);
          rows.leave(number);
        };
        if (step % 50 == 0) other = std::thread(write, 0, kWidth / 2);
        else write(0, kWidth / 2);
        if (step % 2 == 0) rows.end(number, 2), write(kWidth / 2, kWidth);
        else write(kWidth / 2, kWidth), rows.end(number, 2);
        if (other.joinable()) other.join();
        steps[thread] = step;
      }
      --writing;
    });
  }
  std::int64_t known = 0;
  while (writing > 0) known = look(rows, known, &seen);
  for (std::thread& thread : threads) thread.join();
  known = look(rows, known, &seen);
  require(known == kThreads * kEach, "rows are lost");
  require(rows.pending() == 0, "a row is expected that has come");
  for (const int count : seen) require(count <= 1, "a row is there twice");
}

void given_up() {
  Rows rows(8, kWidth);
  std::vector<int> seen(2);
  for (int step = 0; step < 1000; ++step) {
    const std::int64_t failed = rows.begin();
    if (step % 3 == 0) rows.leave(failed);
    if (step % 3 == 1) rows.end(failed, 1);  // and somebody never leaves
    const std::int64_t number = rows.begin();
    rows.end(number, 0);
  }
  std::vector<double> ring(8 * kWidth);
  require(rows.read(ring.data()) == 1000, "rows after one that failed");
  require(rows.pending() <= 64, "rows are expected that were given up");
  rows.set(3, 0, 1);
  rows.set(1999, kWidth, 1);  // outside
  rows.leave(3);
}

template <typename T, typename Make>
void squares_of(const char* name, double error, const Make& make) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal;
  for (const std::size_t count : {0, 1, 15, 16, 17, 4095, 4096, 4097, 100000}) {
    std::vector<T> numbers(count);
    double expected = 0;
    for (T& number : numbers) {
      const float value = std::ldexp(std::round(std::ldexp(normal(engine), 5)), -5);  // any of the dtypes has it
      number = make(value);
      expected += static_cast<double>(value) * value;
    }
    const double found = stamps::squares(numbers.data(), count);
    require(std::fabs(found - expected) <= error * expected, std::string("squares of ") + name);
  }
}

collectives::Half half(float value) {
  collectives::Half made;
  collectives::internal::narrow(value, &made);
  return made;
}

collectives::BHalf bhalf(float value) {
  collectives::BHalf made;
  collectives::internal::narrow(value, &made);
  return made;
}

}  // namespace

int main() {
  whole();
  given_up();
  squares_of<float>("float32", 1e-5, [](float value) { return value; });
  squares_of<double>("float64", 1e-12, [](float value) { return static_cast<double>(value); });
  squares_of<collectives::Half>("float16", 1e-5, half);
  squares_of<collectives::BHalf>("bfloat16", 1e-5, bhalf);
  if (wrong == 0) std::puts("stamps: ok");
  return wrong == 0 ? 0 : 1;
}

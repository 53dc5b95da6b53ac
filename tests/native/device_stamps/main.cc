// Checks times of events by themselves, with a driver that has no device: `device_stamps DRIVER`.
//
//   times     come once events are reached, are those of the wall clock, and rows are left then and not before
//   values    are what the device had when it came to them
//   again     events are used again, and anchors are renewed, however many steps there are
//   failures  of any call leave the row without a time, and hold nothing up
//   none      a driver that is not there, or lacks something, is refused
//
// It ends with 0 if everything was right, and says what was not.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "../../../tfdist/native/device_stamps/events.h"

namespace {

using namespace tfdist::device_stamps;

std::atomic<int> wrong{0};

void require(bool is_so, const std::string& what) {
  if (is_so) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

void until(const std::function<bool()>& is_so, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_so() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  require(is_so(), what);
}

std::mutex mutex;
std::map<std::pair<std::int64_t, std::size_t>, double> values;
std::map<std::int64_t, int> left;

void set(std::int64_t, std::int64_t number, std::size_t column, double value) {
  const std::lock_guard<std::mutex> guard(mutex);
  require(values.emplace(std::make_pair(number, column), value).second, "a column is written twice");
}
void leave(std::int64_t, std::int64_t number) {
  const std::lock_guard<std::mutex> guard(mutex);
  ++left[number];
}
bool has(std::int64_t number, std::size_t column) {
  const std::lock_guard<std::mutex> guard(mutex);
  return values.count({number, column}) > 0;
}
double value(std::int64_t number, std::size_t column) {
  const std::lock_guard<std::mutex> guard(mutex);
  return values[{number, column}];
}
int times_left(std::int64_t number) {
  const std::lock_guard<std::mutex> guard(mutex);
  return left[number];
}

const Sink kSink{set, leave};
const Stream kBusy = reinterpret_cast<Stream>(0x5);
void (*enter)(void*);
void (*fail_after)(int);
int (*alive)();
int (*reach)(int);

void times(const Driver& driver) {
  Events events(driver, kSink);
  const double known = 2.5;
  const double first = now();
  events.mark({0, 1, 3, 0}, kBusy, 0);
  events.mark({0, 2, 3, 7}, kBusy, reinterpret_cast<Memory>(&known));
  require(events.pending() == 2, "what was not reached has no time");
  require(!has(1, 3) && times_left(1) == 0, "a row is written, or left, before its event was reached");
  require(now() - first < 30, "to mark waits for nothing");
  const double before = now();
  reach(1);
  const double after = now();
  until([&events] { return events.pending() == 1; }, "a time does not come");
  constexpr double kSlack = 2e-3;  // clocks differ by one in a thousand, and an anchor is a second old at most
  require(before - kSlack < value(1, 3) && value(1, 3) < after + kSlack, "a time is not that of the wall clock");
  require(times_left(1) == 1 && times_left(2) == 0, "the row whose event was reached is left, once");
  require(reach(10) == 2, "a copy and an event");
  until([&events] { return events.pending() == 0; }, "the last time does not come");
  require(value(2, 7) == known, "a value is not that of the device");
  require(value(2, 3) >= value(1, 3), "times are in order");
}

void again(const Driver& driver) {
  const int before = alive();
  {
    Events events(driver, kSink);
    enter(reinterpret_cast<void*>(0x8));
    int steps = 0;
    const auto step = [&] {
      for (std::size_t column = 0; column < 5; ++column) events.mark({0, 100 + steps, column, 0}, kBusy, 0);
      reach(5);
      ++steps;
      until([&events] { return events.pending() < 50; }, "marks are not settled");
    };
    while (steps < 500 || events.anchors() < 3) step();
    until([&events] { return events.pending() == 0; }, "the last marks are not settled");
    require(alive() - before <= 60, "events are made anew: " + std::to_string(alive() - before));
    double last = 0;
    for (int i = 0; i < steps; ++i) {
      require(times_left(100 + i) == 5, "each mark leaves its row");
      for (std::size_t column = 0; column < 5; ++column) {
        require(value(100 + i, column) > last - 4e-3, "a new anchor moves times");
        last = value(100 + i, column);
      }
    }
    require(std::abs(last - now()) < 60, "the last time is of now");
  }
  enter(reinterpret_cast<void*>(0x7));
}

void failures(const Driver& driver) {
  const double number = 1;
  for (int calls = 0; calls < 12; ++calls) {
    Events events(driver, kSink);
    fail_after(calls);
    events.mark({0, -1 - calls, 1, 2}, kBusy, reinterpret_cast<Memory>(&number));
    reach(10);
    until([calls] { return times_left(-1 - calls) == 1; }, "a row is not left when a call fails");
    fail_after(-1);
    until([&events] { return events.pending() == 0; }, "what has failed holds others up");
    reach(10);
  }
  enter(nullptr);
  Events events(driver, kSink);
  events.mark({0, -100, 1, 2}, kBusy, 0);
  require(times_left(-100) == 1 && !has(-100, 1), "a thread without a context marks nothing");
  enter(reinterpret_cast<void*>(0x7));
}

}  // namespace

int main(int, char** arguments) {
  Driver driver, none;
  require(!none.load("/none/libcuda.so.1"), "a driver that is not there");
  require(!none.load("libc.so.6"), "a library that is no driver");
  require(driver.load(arguments[1]), "the driver of the test");
  void* const library = dlopen(arguments[1], RTLD_NOW);
  enter = reinterpret_cast<decltype(enter)>(dlsym(library, "fake_enter"));
  fail_after = reinterpret_cast<decltype(fail_after)>(dlsym(library, "fake_fail_after"));
  alive = reinterpret_cast<decltype(alive)>(dlsym(library, "fake_alive"));
  reach = reinterpret_cast<decltype(reach)>(dlsym(library, "fake_reach"));
  enter(reinterpret_cast<void*>(0x7));
  times(driver);
  again(driver);
  failures(driver);
  if (wrong == 0) std::puts("device stamps: ok");
  return wrong == 0 ? 0 : 1;
}

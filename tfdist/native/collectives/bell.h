// How members of a host wake each other: each sleeps on a word in the shared memory, and who has changed something that
// others may wait for rings.

#ifndef TFDIST_NATIVE_COLLECTIVES_BELL_H_
#define TFDIST_NATIVE_COLLECTIVES_BELL_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "layout.h"

namespace tfdist::collectives {

// How a member's thread sleeps: it has nothing to do, or waits for what other members do.
inline constexpr std::uint32_t kIdle = 1, kWaiting = 2;

// Wakes a member that sleeps so or waits. What was stored before is seen by it when it wakes, or before it falls
// asleep: both sides write, and then look at what the other has written (both in sequential order).
inline void ring(Member& member, std::uint32_t depth = kIdle) {
  member.bell.fetch_add(1, std::memory_order_seq_cst);
  if (member.sleeping.load(std::memory_order_seq_cst) >= depth) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&member.bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

// Wakes a member if it waits. One whose thread has nothing to do is left alone: where an operation is under way nevertheless,
// its caller's thread moves it on, and a wake-up for every chunk would take the processor from that.
inline void tell(Member& member) { ring(member, kWaiting); }

// Sleeps until somebody has rung since `seen` was read from the bell, or the time is up.
inline void sleep(Member& me, std::uint32_t seen, std::uint32_t how, long nanoseconds) {
  me.sleeping.store(how, std::memory_order_seq_cst);
  if (me.bell.load(std::memory_order_seq_cst) == seen) {
    const timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&me.bell), FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  me.sleeping.store(0, std::memory_order_seq_cst);
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_BELL_H_

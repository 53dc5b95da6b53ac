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

// Wakes a member if it sleeps. What was stored before is seen by it when it wakes, or before it falls asleep: both sides
// write, and then look at what the other has written (both in sequential order).
inline void ring(Member& member) {
  member.bell.fetch_add(1, std::memory_order_seq_cst);
  if (member.sleeping.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&member.bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

// Sleeps until somebody has rung since `seen` was read from the bell, or the time is up.
inline void sleep(Member& me, std::uint32_t seen, long nanoseconds) {
  me.sleeping.store(1, std::memory_order_seq_cst);
  if (me.bell.load(std::memory_order_seq_cst) == seen) {
    const timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&me.bell), FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  me.sleeping.store(0, std::memory_order_seq_cst);
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_BELL_H_

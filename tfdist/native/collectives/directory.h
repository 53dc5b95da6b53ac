// Which operations are under way on a host, and who has which area: a table in the shared memory.
//
// An operation gets an area only when all of its members have arrived, and who has arrived moves on by itself: so areas
// come back, and operations of which members begin in different orders cannot wait for each other for ever. A call takes
// the table's lock or, if another member has it, does nothing: nobody waits, so a member that is killed in here delays no
// one's finding out. The lock says who has it, so it is found out whoever it was. Who has found it taken leaves a mark, and
// is rung for when it is given back.

#ifndef TFDIST_NATIVE_COLLECTIVES_DIRECTORY_H_
#define TFDIST_NATIVE_COLLECTIVES_DIRECTORY_H_

#include <cstring>
#include <vector>

#include "bell.h"
#include "segment.h"

namespace tfdist::collectives {

class Directory {
 public:
  // `me`: this process's index in the segment.
  Directory(Segment& segment, std::uint64_t me) : segment_(segment), me_(me) {}

  enum class Outcome { kDone, kBusy, kFull };

  // Enters a member into the ticket of an operation, which its first member makes.
  //   member: index among the operation's members, of whom there are `expected`.
  //   data: the bytes that it brings, copied into the small slot if the ticket has one and they are few; may be null.
  //   ticket: receives the ticket's number.
  // kFull: no ticket is left. That the last one has arrived is for the caller to say to the others.
  Outcome arrive(std::uint64_t id, std::size_t member, std::size_t expected, const Post& post, const char* data,
                 std::uint32_t* number) {
    const Lock lock(segment_, me_);
    if (!lock.held()) return Outcome::kBusy;
    Header& head = segment_.header();
    std::uint32_t& bucket = head.buckets[id % kBuckets];
    std::uint32_t found = bucket;
    while (found != 0 && segment_.ticket(found - 1).id != id) found = segment_.ticket(found - 1).next;
    if (found == 0) {
      found = head.free_ticket;
      if (found == 0) return Outcome::kFull;
      Ticket& made = segment_.ticket(found - 1);
      head.free_ticket = made.next;
      made.arrived.store(0, std::memory_order_relaxed);
      made.area.store(0, std::memory_order_relaxed);
      made.id = id;
      made.next = bucket;
      made.small = 0;
      made.expected = static_cast<std::uint32_t>(expected);
      made.gone = 0;
      std::memset(made.present, 0, sizeof made.present);
      bucket = found;
      if (post.bytes <= kSmallBytes && head.free_small != 0) {
        made.small = head.free_small;
        head.free_small = segment_.small_link(made.small - 1);
      }
    }
    Ticket& ticket = segment_.ticket(found - 1);
    segment_.posts(ticket)[member] = post;
    if (member < 8 * sizeof ticket.present) ticket.present[member / 32] |= 1u << (member % 32);
    if (ticket.small != 0 && data != nullptr && post.bytes > 0 && post.bytes <= kSmallBytes) {
      std::memcpy(segment_.small_slot(ticket.small - 1, member), data, post.bytes);
    }
    ticket.arrived.fetch_add(1, std::memory_order_release);
    *number = found - 1;
    return Outcome::kDone;
  }

  // Gives the ticket, whose members have all arrived, an area if one is free and it has none. kFull: none is free.
  Outcome take_area(std::uint32_t number) {
    const Lock lock(segment_, me_);
    if (!lock.held()) return Outcome::kBusy;
    Ticket& ticket = segment_.ticket(number);
    if (ticket.area.load(std::memory_order_relaxed) != 0) return Outcome::kDone;
    Header& head = segment_.header();
    for (std::size_t area = 0; area < kAreas; ++area) {
      if ((head.free_areas & (1u << area)) == 0) continue;
      head.free_areas &= ~(1u << area);
      for (std::size_t i = 0; i < segment_.layout().members; ++i) {
        Progress& progress = segment_.progress(area)[i];
        progress.published.store(0, std::memory_order_relaxed);
        progress.reduced.store(0, std::memory_order_relaxed);
        progress.done.store(0, std::memory_order_relaxed);
      }
      ticket.area.store(area + 1, std::memory_order_release);
      return Outcome::kDone;
    }
    return Outcome::kFull;
  }

  // Adds the indexes of the members that have not arrived; nothing if another member has the lock.
  void add_absent(std::uint32_t number, std::vector<std::size_t>* absent) {
    const Lock lock(segment_, me_);
    if (!lock.held()) return;
    const Ticket& ticket = segment_.ticket(number);
    for (std::size_t i = 0; i < ticket.expected && i < 8 * sizeof ticket.present; ++i) {
      if ((ticket.present[i / 32] & (1u << (i % 32))) == 0) absent->push_back(i);
    }
  }

  // Takes a member out of a ticket; with the last one the ticket is free, and what it had. `gave_area` receives whether an
  // area came back, for which others may wait.
  Outcome leave(std::uint32_t number, bool* gave_area) {
    const Lock lock(segment_, me_);
    if (!lock.held()) return Outcome::kBusy;
    Ticket& ticket = segment_.ticket(number);
    if (++ticket.gone < ticket.expected) return Outcome::kDone;
    Header& head = segment_.header();
    std::uint32_t* link = &head.buckets[ticket.id % kBuckets];
    while (*link != number + 1) link = &segment_.ticket(*link - 1).next;
    *link = ticket.next;
    if (ticket.small != 0) {
      segment_.small_link(ticket.small - 1) = head.free_small;
      head.free_small = ticket.small;
    }
    const std::uint64_t area = ticket.area.load(std::memory_order_relaxed);
    if (area != 0) head.free_areas |= 1u << (area - 1);
    *gave_area = area != 0;
    ticket.next = head.free_ticket;
    head.free_ticket = number + 1;
    return Outcome::kDone;
  }

 private:
  class Lock {
   public:
    Lock(Segment& segment, std::uint64_t me) : segment_(segment), head_(segment.header()) {
      for (int i = 0; i < kTries && !held_; ++i) take(me + 1, std::memory_order_acquire);
      if (held_) return;
      // Both sides write, and then look at what the other has written, all in sequential order: either it is free now, or
      // who has it sees the mark.
      head_.waited.store(1, std::memory_order_seq_cst);
      take(me + 1, std::memory_order_seq_cst);
    }
    ~Lock() {
      if (!held_) return;
      head_.lock.store(0, std::memory_order_seq_cst);
      if (head_.waited.load(std::memory_order_seq_cst) == 0 || head_.waited.exchange(0, std::memory_order_seq_cst) == 0) return;
      for (std::size_t i = 0; i < segment_.layout().members; ++i) tell(segment_.member(i));
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    bool held() const { return held_; }

   private:
    void take(std::uint64_t holder, std::memory_order order) {
      std::uint64_t open = 0;
      held_ = head_.lock.compare_exchange_strong(open, holder, order, std::memory_order_relaxed);
    }

    static constexpr int kTries = 64;
    Segment& segment_;
    Header& head_;
    bool held_ = false;
  };

  Segment& segment_;
  const std::uint64_t me_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_DIRECTORY_H_

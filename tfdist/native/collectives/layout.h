// What lies in the memory that the processes of one host share.
//
// One segment per host and job: a header, a line for each member, tickets (one per operation that is under way), small
// slots for operations of few bytes, and areas through which the bytes of larger ones stream in chunks. The memory begins
// as zeros, and all that is waited for are atomic 64-bit counters, or 32-bit words where the kernel's futex needs them.

#ifndef TFDIST_NATIVE_COLLECTIVES_LAYOUT_H_
#define TFDIST_NATIVE_COLLECTIVES_LAYOUT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tfdist::collectives {

using Counter = std::atomic<std::uint64_t>;
using Word = std::atomic<std::uint32_t>;
static_assert(Counter::is_always_lock_free && Word::is_always_lock_free && sizeof(Word) == 4);

inline constexpr std::uint64_t kSegmentMagic = 0x7466646973743031;  // "tfdist01"
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kSmallBytes = 4096;  // an operation of so few bytes per member goes with its ticket
inline constexpr std::size_t kTickets = 4096;
inline constexpr std::size_t kBuckets = 1024;
inline constexpr std::size_t kAreas = 4;
inline constexpr std::size_t kSlots = 4;  // chunks of one member that may be under way in an area
inline constexpr std::size_t kReasonBytes = 480;

struct alignas(kLine) Member {
  Counter pid;        // 0 until it has come, and the namespace in which the number counts
  Counter namespace_;
  Counter answer;     // the nonce, as this member has read it
  Counter heartbeat;  // rises while its progress thread runs
  Counter left;       // 1 once it takes part no more
  alignas(kLine) Word bell;  // rises when there may be something to do; what its progress thread sleeps on
  Word sleeping;             // whether and how it sleeps, see bell.h
};

// What a member says of its part of an operation when it arrives.
struct Post {
  std::uint64_t signature;  // kind, dtype and so on: alike on all members
  std::uint64_t size;       // in bytes, likewise alike; of what depends on the kind
  std::uint64_t bytes;      // that this member brings
  std::uint64_t rows;       // as which it brings them, where members may bring different numbers
};

// One operation, from its first member's arrival until its last member has left it. The posts follow behind it.
struct alignas(kLine) Ticket {
  Counter arrived;  // number of members; their posts can be read when all are there
  Counter area;     // number of its area from 1 on; 0 while it has none
  // Read and written under the directory's lock only.
  std::uint64_t id;
  std::uint32_t next;  // in the bucket, or in the list of those that are free; from 1 on
  std::uint32_t small;  // number of its small slot from 1 on; 0 if it has none
  std::uint32_t expected;
  std::uint32_t gone;
  std::uint32_t present[8];  // which members have arrived, for messages; the first 256
};

// How far a member is in an area, in chunks. Each counter has a line of its own, which one member writes.
struct Progress {
  alignas(kLine) Counter published;
  alignas(kLine) Counter reduced;
  alignas(kLine) Counter done;
};

struct Header {
  Counter magic;  // stored last
  std::uint64_t nonce[2];
  std::uint64_t bytes;
  std::uint64_t members;
  alignas(kLine) Counter broken;  // 0; 1 while the reason is written; 2 when it is there
  char reason[kReasonBytes];
  alignas(kLine) Counter lock;  // of the directory: 0, or the index of the member that has it and 1
  Word waited;                  // whether a member has found it taken since it was last given back
  std::uint32_t free_ticket;    // what is free, from 1 on: lists
  std::uint32_t free_small;
  std::uint32_t free_areas;  // a bit for each
  std::uint32_t buckets[kBuckets];
};

// Where everything is, which follows from the number of members.
class Layout {
 public:
  explicit Layout(std::size_t members) : members(members) {
    // A line of it for each member at the least: what a member takes of a chunk is whole lines.
    chunk = std::max({kChunks / members / kPage * kPage, kPage * 2, aligned(members * kLine, kPage)});
    smalls = std::clamp<std::size_t>(kSmalls / (members * kSmallBytes), 16, 256);
    ticket_bytes = aligned(sizeof(Ticket) + members * sizeof(Post), kLine);
    area_bytes = aligned(members * sizeof(Progress), kPage) + members * kSlots * chunk;
    members_at = aligned(sizeof(Header), kLine);
    tickets_at = aligned(members_at + members * sizeof(Member), kPage);
    links_at = aligned(tickets_at + kTickets * ticket_bytes, kPage);
    smalls_at = aligned(links_at + smalls * sizeof(std::uint32_t), kPage);
    areas_at = smalls_at + smalls * members * kSmallBytes;
    bytes = areas_at + kAreas * area_bytes;
  }

  std::size_t members;
  std::size_t chunk;   // bytes of a slot
  std::size_t smalls;  // number of small slots
  std::size_t ticket_bytes, area_bytes;
  std::size_t members_at, tickets_at, links_at, smalls_at, areas_at;
  std::size_t bytes;

 private:
  static constexpr std::size_t kChunks = 512 * 1024;   // of all members: small enough to stay in a cache
  static constexpr std::size_t kSmalls = 2 * 1024 * 1024;

  static constexpr std::size_t aligned(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_LAYOUT_H_

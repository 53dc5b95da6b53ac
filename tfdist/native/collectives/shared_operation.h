// Operations among members of one host, through the memory that they share.
//
// A member copies what others need into slots, chunk by chunk, and reads theirs; a slot is used again when all have read
// it. So an operation of any size needs no more memory than an area has, and its chunks stay in the processor's caches.
// In a reduction each member adds up its part of a chunk, in the order of ranks, and writes the result where its own
// contribution would be: all members get the same bits.

#ifndef TFDIST_NATIVE_COLLECTIVES_SHARED_OPERATION_H_
#define TFDIST_NATIVE_COLLECTIVES_SHARED_OPERATION_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "directory.h"
#include "dtype.h"
#include "operation.h"
#include "segment.h"
#include "signature.h"

namespace tfdist::collectives {

// The members of an operation, as the segment knows them, and which of them this process is.
struct Place {
  std::shared_ptr<Segment> segment;
  std::vector<std::uint32_t> members;  // indexes in the segment, in the order of ranks
  std::size_t me = 0;                  // index in `members`
  std::vector<int> ranks;              // of the job, for messages
};

// Bytes that lie in several places, as if they were one after the other.
struct Piece {
  const char* from;
  char* into;
  std::size_t bytes;
};

// Copies bytes, unless they are there already; of none both places may be null.
inline void copy(void* into, const void* from, std::size_t bytes) {
  if (bytes > 0 && into != from) std::memcpy(into, from, bytes);
}

class SharedOperation : public Operation {
 public:
  SharedOperation(Place place, std::uint64_t id, const Post& post)
      : place_(std::move(place)), directory_(*place_.segment, place_.members[place_.me]), id_(id), post_(post) {}

  std::string what() const override { return described({post_.signature, post_.size}); }
  std::string waits_for() const override;

 protected:
  // What a kind of operation does; all are called at most once for each chunk, in order.

  // The bytes that this member brings, if they are so few that they go with the ticket.
  virtual const char* brought() = 0;
  // All have arrived with these posts. Returns an error, or nothing.
  virtual std::string begin(const Post* posts) = 0;
  // Does all at once: these are the bytes that the members have brought.
  virtual void whole(const std::vector<const char*>& brought) = 0;
  virtual std::uint64_t chunks() = 0;
  virtual void publish(std::uint64_t chunk, char* slot) = 0;
  virtual void reduce(std::uint64_t chunk) = 0;  // when all have published it
  virtual bool collects() const { return false; }
  virtual void collect(std::uint64_t) {}  // when all have reduced it

  std::size_t size() const { return place_.members.size(); }
  std::size_t me() const { return place_.me; }
  Segment& segment() { return *place_.segment; }
  char* slot(std::size_t member, std::uint64_t chunk) { return segment().slot(area_, member, chunk); }

 private:
  enum class Phase { kArrive, kMeet, kArea, kStream, kLeave };

  bool move() final;
  bool arrive();
  bool meet();
  bool stream();
  bool leave();
  void tell_others();
  bool have(Counter Progress::*counter, std::uint64_t count);
  std::string disagreement(const Post* posts) const;

  Place place_;
  mutable Directory directory_;
  const std::uint64_t id_;
  const Post post_;
  Phase phase_ = Phase::kArrive;
  std::uint32_t ticket_ = 0;
  std::size_t area_ = 0;
  std::uint64_t chunks_ = 0, published_ = 0, reduced_ = 0, done_ = 0;
  std::string error_;
};

// The sums, minima or maxima of pieces that have the same sizes on all members. `into` may be `from`.
std::unique_ptr<SharedOperation> shared_all_reduce(Place place, std::uint64_t id, std::vector<Piece> pieces, DType dtype,
                                                   Op op);

// Each member's part of the reduction; part r begins `begins[r]` bytes behind `from`, and begins[size] is the end.
std::unique_ptr<SharedOperation> shared_reduce_scatter(Place place, std::uint64_t id, const char* from, char* into,
                                                       std::vector<std::size_t> begins, DType dtype, Op op);

// Each member's part of what every member has, in the order of ranks; parts as in `shared_reduce_scatter`.
std::unique_ptr<SharedOperation> shared_all_to_all(Place place, std::uint64_t id, const char* from, char* into,
                                                   std::vector<std::size_t> begins);

// Rows that all members bring, one after the other. `allocate` is told how many all bring together and returns where they
// go, or null where that cannot be had.
using Allocate = std::function<char*(std::uint64_t rows)>;
std::unique_ptr<SharedOperation> shared_all_gather(Place place, std::uint64_t id, const char* from, std::size_t rows,
                                                   std::size_t row_bytes, Allocate allocate);

// The bytes of the member with index `root`. `from` may be `into`, and counts on the root alone.
std::unique_ptr<SharedOperation> shared_broadcast(Place place, std::uint64_t id, const char* from, char* into,
                                                  std::size_t bytes, std::size_t root);

// From one of two members to the other.
std::unique_ptr<SharedOperation> shared_send(Place place, std::uint64_t id, const char* from, std::size_t bytes);
std::unique_ptr<SharedOperation> shared_receive(Place place, std::uint64_t id, char* into, std::size_t bytes);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SHARED_OPERATION_H_

// Collective operations over TCP, as state machines. All members of a group call them with the same id, which names an
// operation for as long as it runs; members may begin different operations in different orders.

#ifndef TFDIST_NATIVE_COLLECTIVES_TCP_H_
#define TFDIST_NATIVE_COLLECTIVES_TCP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dtype.h"
#include "operation.h"
#include "plan.h"
#include "planned_operation.h"
#include "transport.h"

namespace tfdist::collectives {

// What all of them need. The transport outlives the operation; the memory stays until it is done or has failed.
struct Call {
  Transport& transport;
  Members members;
  std::uint64_t id;
};

// The sum, minimum or maximum of `count` elements, in place. The result is the same to the bit on all members. Sums of
// 16-bit floats are rounded once: halving and doubling and the double tree carry them in float32, which is twice as many
// bytes; the others add up all members' numbers in one place, in the order of ranks.
std::unique_ptr<Operation> all_reduce(const Call& call, Algorithm algorithm, void* data, std::size_t count,
                                      DType dtype, Op op);

// In place: of `data` with one part for each member, the own part has the result, added up in the order of ranks. The
// others' parts are as before.
std::unique_ptr<Operation> reduce_scatter(const Call& call, void* data, const std::vector<std::size_t>& counts,
                                          DType dtype, Op op);

// In place: the own part of `data` goes to all others. Parts may be uneven and empty.
std::unique_ptr<Operation> all_gather(const Call& call, void* data, const std::vector<std::size_t>& bytes);

// `root` is an index in the group.
std::unique_ptr<Operation> broadcast(const Call& call, void* data, std::size_t bytes, int root);

// Part r of `sent` goes to member r, and part r of `received` comes from it. The memory of the two is apart.
std::unique_ptr<Operation> all_to_all(const Call& call, const void* sent, const std::vector<std::size_t>& sent_bytes,
                                      void* received, const std::vector<std::size_t>& received_bytes);

// Between this member and another one alone; both call it with the same number of bytes.
std::unique_ptr<Operation> send(const Call& call, const void* data, std::size_t bytes, int to);
std::unique_ptr<Operation> receive(const Call& call, void* data, std::size_t bytes, int from);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_TCP_H_

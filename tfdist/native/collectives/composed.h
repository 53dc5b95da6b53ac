// Operations among members of several hosts, over TCP, and of one host, in its memory: the same ones for both.
//
// An all_reduce among hosts that have as many members each adds up in each host first, then between the members of equal
// index, each its part, and hands the parts out in the hosts. Everything else goes over TCP alone.

#ifndef TFDIST_NATIVE_COLLECTIVES_COMPOSED_H_
#define TFDIST_NATIVE_COLLECTIVES_COMPOSED_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cost.h"
#include "shared_operation.h"
#include "tcp.h"

namespace tfdist::collectives {

// The members of an operation, who are not all on one host.
struct Hosts {
  Transport* transport;
  std::vector<int> ranks;
  std::size_t me = 0;     // index in `ranks`
  std::vector<int> host;  // of each member
  Place near;             // those on this member's host
  Line line;              // between hosts
  std::optional<Algorithm> algorithm;  // of an all_reduce, whatever its size; none: by the line
};

std::unique_ptr<Operation> far_all_reduce(Hosts hosts, std::uint64_t id, std::vector<Piece> pieces, DType dtype, Op op);
std::unique_ptr<Operation> far_reduce_scatter(Hosts hosts, std::uint64_t id, const char* from, char* into,
                                              const std::vector<std::size_t>& begins, DType dtype, Op op);
std::unique_ptr<Operation> far_all_to_all(Hosts hosts, std::uint64_t id, const char* from, char* into,
                                          const std::vector<std::size_t>& begins);
// `is_even`: every member has as many rows; then their numbers are not exchanged, which takes a latency.
std::unique_ptr<Operation> far_all_gather(Hosts hosts, std::uint64_t id, const char* from, std::size_t rows,
                                          std::size_t row_bytes, bool is_even, Allocate allocate);
std::unique_ptr<Operation> far_broadcast(Hosts hosts, std::uint64_t id, const char* from, char* into, std::size_t bytes,
                                         std::size_t root);
std::unique_ptr<Operation> far_send(Hosts hosts, std::uint64_t id, const char* from, std::size_t bytes);
// Measures the connections of all members; `line` receives the same on each.
std::unique_ptr<Operation> far_measurement(Hosts hosts, std::uint64_t id, Line* line);
std::unique_ptr<Operation> far_receive(Hosts hosts, std::uint64_t id, char* into, std::size_t bytes);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_COMPOSED_H_

// Operations among replicas of one process, whose tensors lie in one address space.
//
// A replica leaves what it has where its operation's others find it, and goes on; who comes last does what is to be done,
// from everybody's tensors straight into everybody's results, together with the helpers of the process (`helpers.h`). So no
// thread ever waits, and nothing is copied on the way. Every number is reduced in the order of the replicas, whoever does
// it: all have the same bits, in every run.
//
// Operations meet by their key: a replica's next operation under a key joins the oldest that it is not in yet. One that is
// withdrawn, because its step has failed, is as if it had never come. So steps that fail leave nothing behind that later
// ones could meet.

#ifndef TFDIST_NATIVE_COLLECTIVES_REPLICAS_H_
#define TFDIST_NATIVE_COLLECTIVES_REPLICAS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared_operation.h"
#include "signature.h"

namespace tfdist::collectives {

// What errors of operations begin with whose step has failed elsewhere.
inline constexpr char kWithdrawn[] = "The step has failed elsewhere: ";

// What one replica brings to an operation.
struct Share {
  What what = What::kAllReduce;
  DType dtype = DType::kUint8;
  Op op = Op::kSum;
  std::size_t root = 0;             // whose bytes are copied, in a broadcast and a send
  std::vector<Piece> pieces;        // of a gathering, what it brings: where it goes is allocated
  std::uint64_t rows = 0;           // of a gathering, which may differ between replicas
  std::size_t row_bytes = 0;        // likewise, which may not
  std::vector<std::size_t> begins = {};  // of parts, in bytes behind the only piece; see `shared_reduce_scatter`
  Allocate allocate = {};           // see `shared_all_gather`
  std::function<void(const std::string& error)> done = {};  // called once, in any thread; no error: it is done
  // Asks for a call when the step is broken off. False: it has been already. `unwatch` takes it back, if that goes.
  std::function<bool(std::function<void()>)> watch = [](std::function<void()>) { return true; };
  std::function<void()> unwatch = [] {};
};

class Replicas : public std::enable_shared_from_this<Replicas> {
 public:
  // Joins the operation with this key, of the replicas with these ranks; `me` is an index of `ranks`.
  void meet(std::uint64_t key, const std::vector<int>& ranks, std::size_t me, Share share);

  // Ends all operations with an error, now and later.
  void abort(const std::string& reason);

 private:
  struct Entry {
    Share share;
    std::uint64_t number;  // of all that have come
  };
  using Meeting = std::vector<std::optional<Entry>>;  // by index of its ranks

  void withdraw(std::uint64_t key, std::uint64_t number);

  std::mutex mutex_;
  // By mutex_; the oldest first. An empty list is not kept: keys of functions that are gone cost nothing.
  std::unordered_map<std::uint64_t, std::list<Meeting>> meetings_;
  std::uint64_t last_ = 0;
  std::string broken_;
};

// One replica's part in it.
struct Replica {
  std::shared_ptr<Replicas> all;
  int rank;
};

// Does what replicas have come together for; returns an error, or nothing.
std::string perform(const std::vector<int>& ranks, const std::vector<Share*>& shares);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_REPLICAS_H_

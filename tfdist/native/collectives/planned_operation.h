// Carries out a plan over a transport: a step moves on as far as the steps before it, on the same elements, have come.

#ifndef TFDIST_NATIVE_COLLECTIVES_PLANNED_OPERATION_H_
#define TFDIST_NATIVE_COLLECTIVES_PLANNED_OPERATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"
#include "operation.h"
#include "plan.h"
#include "transport.h"

namespace tfdist::collectives {

// The members of a group: their ranks in the transport, and which of them this one is.
struct Members {
  std::vector<int> ranks;
  int mine = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

class PlannedOperation final : public Operation {
 public:
  // What it works on; the elements of a plan's ranges.
  struct Arrays {
    void* data = nullptr;
    void* output = nullptr;
    DType dtype = DType::kUint8;
    Op op = Op::kSum;
  };

  PlannedOperation(Transport& transport, Members members, const Plan& plan, const Arrays& arrays, std::uint64_t id);
  ~PlannedOperation() override { cancel(); }

  // For messages: whom it waits for, and whether they answer.
  std::string waits_for() const;

 protected:
  bool move() override;
  void stopped() override { cancel(); }

 private:
  struct Running {
    Step step;
    std::vector<std::size_t> after;  // earlier steps on some of the same elements
    bool is_buffered = false;        // what arrives waits in `buffer` for earlier steps
    std::size_t done = 0;            // elements from the first on
    std::size_t asked = 0;           // elements that were given to the transport
    std::vector<Request> requests;   // of `kCombine` one for each other member
    Buffers::Buffer buffer;
  };

  void begin();
  bool move(Running& running);
  bool send(Running& running, std::size_t ready);
  bool add(Running& running, std::size_t ready);
  bool combine(Running& running, std::size_t ready);
  std::size_t ready(const Running& running) const;
  int from(const Running& running, std::size_t request) const;
  char* at(const Step& step, std::size_t element) const;
  void cancel();

  Transport& transport_;
  const Members members_;
  const Arrays arrays_;
  const std::size_t item_;  // bytes of an element
  const std::uint64_t id_;
  bool is_begun_ = false;
  bool is_over_ = false;
  std::vector<Running> steps_;
  std::vector<std::size_t> live_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_PLANNED_OPERATION_H_

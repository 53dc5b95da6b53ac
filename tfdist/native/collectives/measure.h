// Measures the connections of a group, so that `choose` knows them.

#ifndef TFDIST_NATIVE_COLLECTIVES_MEASURE_H_
#define TFDIST_NATIVE_COLLECTIVES_MEASURE_H_

#include <memory>

#include "cost.h"
#include "tcp.h"

namespace tfdist::collectives {

// The mean latency of the connections around the group, and the bandwidth of the slowest, while all send and receive at
// once: 4 MB for each member. All members get the same numbers. `line` stays until it is done; a member alone has a line
// without latency or end.
std::unique_ptr<Operation> measure_line(const Call& call, Line* line);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_MEASURE_H_

// Members that are threads, for ThreadSanitizer, on one host or on two.

#include <mutex>

#include "engines.h"
#include "parts.h"

namespace tfdist::collectives::checks {
namespace {

void check_dtypes() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const std::uint16_t half[] = {static_cast<std::uint16_t>(bits), 0};
      float wide;
      std::uint16_t back[2];
      convert(dtype, half, DType::kFloat32, &wide, 1);
      convert(DType::kFloat32, &wide, dtype, back, 1);
      if (wide == wide && back[0] != half[0]) complain("a 16-bit float does not come back");
    }
  }
  const std::int8_t a[] = {127, -5}, b[] = {1, 7};
  const void* parts[] = {a, b};
  std::int8_t total[2];
  reduce(DType::kInt8, Op::kSum, total, parts, 2, 2);
  if (total[0] != -128 || total[1] != 2) complain("int8 does not wrap");
  const std::uint16_t one = 0x3c00, quarter = 0x1000;  // in float16: 1, and a half of what 1 can be raised by
  const void* halves[] = {&one, &quarter, &quarter};
  std::uint16_t sum;
  reduce(DType::kFloat16, Op::kSum, &sum, halves, 3, 1);
  if (sum != 0x3c01) complain("16-bit floats are rounded more than once");
  const bool yes = true, no = false;
  const void* bools[] = {&yes, &no};
  bool any, all;
  reduce(DType::kBool, Op::kSum, &any, bools, 2, 1);
  reduce(DType::kBool, Op::kMin, &all, bools, 2, 1);
  if (!any || all) complain("bools");
}

void check_layout() {
  for (std::size_t members = 1; members <= 1000; ++members) {
    if (Layout(members).chunk < members * kLine) complain("the chunks of " + std::to_string(members) + " members are too small");
  }
}

}  // namespace

void threads(int rounds) {
  check_dtypes();
  check_layout();
  for (const int members : {1, 2, 3, 5, 8}) {
    const auto memory = with_engines(members, 1, Engine::Options(), [&](Engine& engine) {
      run_cases(engine, members, rounds, 300000);
      Results last;  // an engine that goes while others still read would be a member that has ended
      Case barrier(groups_of(members)[0], engine.rank(), 999, 0, 1);
      engine.submit(barrier.operation(engine), barrier.ranks, last.next());
      last.wait();
    });
    if (memory[0]->header().free_areas != (1u << kAreas) - 1) complain("an area is not given back");
  }
}

void hosts(int rounds) {
  for (const int members : {2, 3, 4}) {
    with_engines(members, 2, Engine::Options(), [&](Engine& engine) {
      const std::string unmeasured = engine.measure();
      if (!unmeasured.empty()) complain("the connections cannot be measured: " + unmeasured);
      run_cases(engine, members, rounds, 300000);
      const std::vector<int> ranks = groups_of(members)[0];
      Case large(ranks, engine.rank(), 998, 0, 3000001);  // more than is copied at a time
      Results sums;
      engine.submit(large.operation(engine), ranks, sums.next());
      if (!sums.wait().empty() || large.out != large.wanted) complain("a sum in several ranges");
      std::vector<char> rows(members);
      Results results;
      engine.submit(far_all_gather(engine.hosts(ranks), engine.next_id(999), "r", 1, 1, false,
                                   [&](std::uint64_t) { return engine.rank() == 0 ? nullptr : rows.data(); }),
                    ranks, results.next());
      const std::string said = results.wait();
      if (said.find("no memory for " + std::to_string(members) + " bytes") == std::string::npos) complain("no memory: " + said);
    });
  }
}

void restart(int times) {
  constexpr int members = 3;
  for (int i = 0; i < times; ++i) {
    double longest = 0;
    std::mutex mutex;
    for (int generation = 0; generation < 2; ++generation) {
      with_engines(members, 1, Engine::Options(), [&](Engine& engine) {
        const int rank = engine.rank();
        run_cases(engine, members, 1, 5000);
        Results there;  // the other two may have operations of their own; what becomes of this one is all the same
        Case barrier({0, 1, 2}, rank, 76, 0, 1);
        engine.submit(barrier.operation(engine), barrier.ranks, there.next());
        there.wait();
        Case waits({0, 1, 2}, rank, 77, 0, 100000);
        Results results;
        if (rank != 1) engine.submit(waits.operation(engine), waits.ranks, results.next());
        const Clock::time_point begin = Clock::now();
        std::string reason = "on purpose";
        for (int letter = 0; letter < 400; ++letter) reason += "\u00e9";  // longer than what there is room for
        if (rank == 1) engine.abort(reason);
        const std::string said = results.wait();
        const bool is_whole = said.rfind("\u00e9") == said.size() - 2;  // up to its last character
        if (rank != 1 && !(is_whole && has(said, "member 1 gave up: on purpose"))) complain(said);
        engine.stop();
        const std::lock_guard<std::mutex> guard(mutex);
        longest = std::max(longest, seconds_since(begin));
      });
    }
    std::printf("after an abort the engine can be started again within %.3f s\n", longest);
  }
}

}  // namespace tfdist::collectives::checks

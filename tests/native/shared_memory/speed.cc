// Times of all-reduces, beside those of a memcpy of as many bytes.

#include <cstring>

#include "parts.h"
#include "processes.h"

namespace tfdist::collectives::checks {

void speed(int members) {
  in_processes(members, 1, [&](Start start) {
    Engine engine(start.members, start.memory, nullptr, Engine::Options());
    const int rank = engine.rank();
    std::vector<int> ranks = groups_of(members)[0];
    for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{4} << 20, std::size_t{64} << 20}) {
      std::vector<float> in(bytes / 4), out(bytes / 4);
      const int rounds = bytes > (1 << 20) ? 30 : 300;
      std::vector<double> reduce, copy;
      for (int i = 0; i < rounds; ++i) {
        for (std::size_t j = 0; j < in.size(); j += 16) in[j] = static_cast<float>(i);  // not the same bytes again
        Clock::time_point begin = Clock::now();
        Results results;
        engine.submit(shared_all_reduce(engine.place(ranks), engine.next_id(bytes),
                                        {{reinterpret_cast<char*>(in.data()), reinterpret_cast<char*>(out.data()), bytes}},
                                        DType::kFloat32, Op::kSum),
                      ranks, results.next());
        results.wait();
        reduce.push_back(seconds_since(begin));
        begin = Clock::now();
        std::memcpy(out.data(), in.data(), bytes);
        copy.push_back(seconds_since(begin));
      }
      std::sort(reduce.begin(), reduce.end());
      std::sort(copy.begin(), copy.end());
      if (rank == 0) {
        std::printf("%9zu bytes: %9.1f us (best %.1f), memcpy %.1f us\n", bytes, 1e6 * reduce[rounds / 2], 1e6 * reduce[0],
                    1e6 * copy[rounds / 2]);
        std::fflush(stdout);
      }
    }
  });
}

}  // namespace tfdist::collectives::checks

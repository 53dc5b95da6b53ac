// Times, beside those of a memcpy of as many bytes.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../../tfdist/native/collectives/cost.h"
#include "../../../tfdist/native/collectives/measure.h"
#include "members.h"

namespace tfdist::collectives::checks {
namespace {

// The median time of an all_reduce whose numbers are new each time, beside a memcpy of as many bytes.
void print_speed(Transport& transport, const Members& members, const std::vector<std::size_t>& sizes) {
  std::uint64_t id = 0;
  Line line{};
  require(run(transport, measure_line({transport, members, ++id}, &line)).empty(), "the line can be measured");
  if (members.mine == 0) std::printf("measured %.3f ms, %.4f GB/s\n", 1e3 * line.latency_seconds, line.bytes_per_second / 1e9);
  for (const std::size_t bytes : sizes) {
    const Algorithm automatic = choose(bytes, members.size(), line);
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<float> data(bytes / 4), copy(bytes / 4);
      std::vector<double> times, copies;
      for (int i = 0; i < (bytes > (1 << 20) ? 7 : 30); ++i) {
        std::fill(data.begin(), data.end(), static_cast<float>(i));
        const Clock::time_point begin = Clock::now();
        const std::string error = run(transport, all_reduce({transport, members, ++id}, algorithm, data.data(), data.size(),
                                                            DType::kFloat32, Op::kSum));
        require(error.empty() && data[0] == static_cast<float>(i * members.size()), "the sum is right: " + error);
        times.push_back(seconds_since(begin));
        const Clock::time_point copy_begin = Clock::now();
        std::memcpy(copy.data(), data.data(), bytes);
        copies.push_back(seconds_since(copy_begin));
      }
      std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
      std::nth_element(copies.begin(), copies.begin() + copies.size() / 2, copies.end());
      if (members.mine != 0) continue;
      std::printf("%9zu bytes, algorithm %d%s: %9.3f ms, %7.4f GB/s; memcpy %7.3f ms\n", bytes, static_cast<int>(algorithm),
                  algorithm == automatic ? " (chosen)" : "         ", 1e3 * times[times.size() / 2],
                  static_cast<double>(bytes) / times[times.size() / 2] / 1e9, 1e3 * copies[copies.size() / 2]);
      std::fflush(stdout);
    }
  }
}

const std::vector<std::size_t> kSizes = {4 << 10, 256 << 10, 4 << 20, 16 << 20, 64 << 20};


}  // namespace

// One member of several hosts: `check_tcp member RANK ADDRESS PORT ADDRESS PORT...`.
int be_member(const std::vector<std::string>& words) {
  Membership membership;
  membership.rank = std::stoi(words.at(0));
  for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
    membership.members.push_back({words[i], static_cast<std::uint16_t>(std::stoi(words[i + 1]))});
  }
  membership.key = kKey;
  std::string error;
  Transport transport(membership, listen_on(membership.members.at(static_cast<std::size_t>(membership.rank)), &error));
  require(error.empty(), error);
  Members members;
  members.mine = membership.rank;
  for (int rank = 0; rank < transport.size(); ++rank) members.ranks.push_back(rank);
  print_speed(transport, members, kSizes);
  transport.finish(20);
  return wrong == 0 ? 0 : 1;
}

void print_speed_of_two() {
  with_members(Job(2), [](Transport& transport, const Members& members) { print_speed(transport, members, kSizes); });
}

}  // namespace tfdist::collectives::checks

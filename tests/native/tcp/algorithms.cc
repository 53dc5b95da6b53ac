// Every operation of 1 to 7 members, of every size, dtype and algorithm.

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../../tfdist/native/collectives/measure.h"
#include "members.h"
#include "numbers.h"

namespace tfdist::collectives::checks {
namespace {

template <typename T>
void check_all_reduce(Transport& transport, const Members& members, DType dtype, std::size_t count, std::uint64_t* id) {
  for (const Op op : {Op::kSum, Op::kMin, Op::kMax}) {
    const std::vector<T> wanted = reduced<T>(members.size(), count, op);
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<T> data = samples<T>(members.mine, count);
      const std::string error =
          run(transport, all_reduce({transport, members, ++*id}, algorithm, data.data(), count, dtype, op));
      require(error.empty() && same(data, wanted),
              "all_reduce " + std::to_string(static_cast<int>(algorithm)) + " of " + std::to_string(count) + " of dtype " +
                  std::to_string(static_cast<int>(dtype)) + " on " + std::to_string(members.size()) + ": " + error);
    }
  }
}

// Numbers whose sums depend on the order: what counts is that all members, and two runs, have the same; and that all
// algorithms between which a measurement chooses have the same.
void check_same_bits(int count_of_members) {
  constexpr std::size_t kCount = 10007;
  const std::vector<Algorithm> chosen_from = {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kTwoShotAround};
  std::vector<float> in_rank_order;
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<std::vector<float>> results(2 * static_cast<std::size_t>(count_of_members));
    for (int run_number = 0; run_number < 2; ++run_number) {
      with_members(Job(count_of_members), [&](Transport& transport, const Members& members) {
        std::mt19937 random(static_cast<unsigned>(members.mine));
        std::vector<float> data(kCount);
        for (float& one : data) one = static_cast<float>(random()) / 1e5f;
        const std::string error =
            run(transport, all_reduce({transport, members, 1}, algorithm, data.data(), kCount, DType::kFloat32, Op::kSum));
        require(error.empty(), error);
        results[static_cast<std::size_t>(run_number * count_of_members + members.mine)] = data;
      });
    }
    for (const auto& result : results) require(same(result, results[0]), "all members and all runs have the same bits");
    if (std::find(chosen_from.begin(), chosen_from.end(), algorithm) == chosen_from.end()) continue;
    if (in_rank_order.empty()) in_rank_order = results[0];
    require(same(results[0], in_rank_order), "a measured choice does not change a bit");
  }
}

// 2048 + 1 + 1 + 1 + 1: each sum rounded to float16 is 2048, and the sum rounded once is 2052.
void check_rounded_once() {
  with_members(Job(5), [](Transport& transport, const Members& members) {
    std::uint64_t id = 0;
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<Half> data(77, number<Half>(members.mine == 0 ? 2048 : 1));
      const std::string error =
          run(transport, all_reduce({transport, members, ++id}, algorithm, data.data(), 77, DType::kFloat16, Op::kSum));
      require(error.empty() && same(data, std::vector<Half>(77, number<Half>(2052))), "16-bit floats are rounded once");
    }
  });
}

void check_other_operations(Transport& transport, const Members& members, std::size_t count, std::uint64_t* id) {
  const std::size_t n = static_cast<std::size_t>(members.size()), mine = static_cast<std::size_t>(members.mine);
  const std::string where = " of " + std::to_string(count) + " on " + std::to_string(n) + ": ";
  std::string error;

  std::vector<std::size_t> counts;
  const Parts parts = even_parts(count, members.size());
  for (std::size_t r = 0; r < n; ++r) counts.push_back(parts[r + 1] - parts[r]);
  std::vector<float> data = samples<float>(members.mine, count), wanted = data;
  const std::vector<float> sums = reduced<float>(members.size(), count, Op::kSum);
  std::copy(sums.begin() + parts[mine], sums.begin() + parts[mine + 1], wanted.begin() + parts[mine]);
  error = run(transport, reduce_scatter({transport, members, ++*id}, data.data(), counts, DType::kFloat32, Op::kSum));
  require(error.empty() && same(data, wanted), "reduce_scatter" + where + error);

  for (const bool uneven : {false, true}) {
    std::vector<std::size_t> bytes;
    for (std::size_t r = 0; r < n; ++r) bytes.push_back(!uneven ? count : r == 1 ? 5 * count : r == 2 ? 0 : count / (r + 1));
    std::vector<char> all, some;
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < bytes[r]; ++i) {
        all.push_back(static_cast<char>(sample(static_cast<int>(r), i)));
        some.push_back(r == mine ? all.back() : '\x7f');
      }
    }
    error = run(transport, all_gather({transport, members, ++*id}, some.data(), bytes));
    require(error.empty() && some == all, "all_gather" + where + error);
  }

  for (int root = 0; root < members.size(); ++root) {
    std::vector<char> value(count);
    if (root == members.mine) value = samples<char>(root, count);
    error = run(transport, broadcast({transport, members, ++*id}, value.data(), count, root));
    require(error.empty() && value == samples<char>(root, count), "broadcast" + where + error);
  }

  // member r has r + s + count bytes for member s, none where they are 3 in all
  const auto size = [&](std::size_t from, std::size_t to) { return from + to == 3 ? 0 : from + 2 * to + count; };
  std::vector<std::size_t> out_bytes, in_bytes;
  std::vector<char> out, in, expected;
  for (std::size_t r = 0; r < n; ++r) {
    out_bytes.push_back(size(mine, r));
    in_bytes.push_back(size(r, mine));
    out.insert(out.end(), size(mine, r), static_cast<char>(10 * mine + r));
    expected.insert(expected.end(), size(r, mine), static_cast<char>(10 * r + mine));
  }
  in.resize(expected.size());
  error = run(transport, all_to_all({transport, members, ++*id}, out.data(), out_bytes, in.data(), in_bytes));
  require(error.empty() && in == expected, "all_to_all" + where + error);

  if (n > 1) {
    const int next = (members.mine + 1) % members.size(), last = (members.mine + members.size() - 1) % members.size();
    std::vector<char> from_last(count), to_next = samples<char>(members.mine, count);
    Operations both;
    both.push_back(receive({transport, members, ++*id}, from_last.data(), count, last));
    both.push_back(send({transport, members, *id}, to_next.data(), count, next));
    error = run(transport, both);
    require(error.empty() && from_last == samples<char>(last, count), "send and receive" + where + error);
  }
}


}  // namespace

void check_algorithms() {
  for (const int count : {1, 2, 3, 4, 5, 7}) {
    with_members(Job(count), [count](Transport& transport, const Members& members) {
      std::uint64_t id = 0;
      for (const int size : {0, 1, count - 1, count, count + 1, 1009, count < 4 ? (1 << 20) + 1 : 100003}) {
        check_all_reduce<float>(transport, members, DType::kFloat32, static_cast<std::size_t>(size), &id);
        check_other_operations(transport, members, static_cast<std::size_t>(size), &id);
      }
      for (const std::size_t size : {1, 20011}) {
        check_all_reduce<Half>(transport, members, DType::kFloat16, size, &id);
        check_all_reduce<BHalf>(transport, members, DType::kBFloat16, size, &id);
        check_all_reduce<double>(transport, members, DType::kFloat64, size, &id);
        check_all_reduce<std::int8_t>(transport, members, DType::kInt8, size, &id);
        check_all_reduce<std::int64_t>(transport, members, DType::kInt64, size, &id);
        check_all_reduce<std::uint16_t>(transport, members, DType::kUint16, size, &id);
        check_all_reduce<Bool>(transport, members, DType::kBool, size, &id);
      }
      Line line{};
      require(run(transport, measure_line({transport, members, ++id}, &line)).empty(), "the line can be measured");
      if (count == 1) return;
      require(line.latency_seconds > 0 && line.latency_seconds < 1 && line.bytes_per_second > 1e6, "the line is plausible");
      std::vector<double> most = {line.latency_seconds, line.bytes_per_second}, least = most;
      run(transport, all_reduce({transport, members, ++id}, Algorithm::kRing, most.data(), 2, DType::kFloat64, Op::kMax));
      run(transport, all_reduce({transport, members, ++id}, Algorithm::kRing, least.data(), 2, DType::kFloat64, Op::kMin));
      require(same(most, least), "all members have measured the same");
    });
  }
  for (const int members : {2, 3, 5}) check_same_bits(members);
  check_rounded_once();
  with_members(Job(3, "::1"), [](Transport& transport, const Members& members) {
    std::uint64_t id = 0;
    check_all_reduce<float>(transport, members, DType::kFloat32, 1009, &id);
  });
  with_members(Job(4, "localhost"), [](Transport& transport, const Members& members) {
    // groups that overlap: the first and the last three
    std::vector<float> first = samples<float>(members.mine, 5000), last = first;
    Operations operations;
    if (members.mine < 3) {
      operations.push_back(all_reduce({transport, {{0, 1, 2}, members.mine}, 1}, Algorithm::kRing, first.data(), 5000,
                                      DType::kFloat32, Op::kSum));
    }
    if (members.mine > 0) {
      operations.push_back(all_reduce({transport, {{1, 2, 3}, members.mine - 1}, 2}, Algorithm::kDoubleTree, last.data(),
                                      5000, DType::kFloat32, Op::kMax));
    }
    require(run(transport, operations).empty(), "groups may overlap");
    if (members.mine < 3) require(same(first, reduced<float>(3, 5000, Op::kSum)), "the sum over the first group");
  });
}

}  // namespace tfdist::collectives::checks

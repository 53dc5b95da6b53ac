#include "cases.h"

#include <cstring>
#include <random>

namespace tfdist::collectives::checks {

std::unique_ptr<Operation> Case::far(Engine& engine) {
  const Hosts hosts = engine.hosts(ranks);
  const std::uint64_t id = engine.next_id(key);
  char* from = reinterpret_cast<char*>(in.data());
  char* into = reinterpret_cast<char*>(out.data());
  std::vector<std::size_t> begins;
  for (std::size_t r = 0; r <= ranks.size(); ++r) begins.push_back(count * r / ranks.size() * 4);
  if (kind == 0) {
    const std::size_t half = count / 2 * 4;
    const std::vector<Piece> pieces = {{from, into, half}, {from + half, into + half, count * 4 - half}};
    return far_all_reduce(hosts, id, pieces, DType::kFloat32, Op::kSum);
  }
  if (kind == 1) return far_reduce_scatter(hosts, id, from, into, begins, DType::kFloat32, Op::kSum);
  if (kind == 2 || kind == 5) {  // of unequal rows, and of equal ones
    return far_all_gather(hosts, id, from, in.size(), 4, kind == 5,
                          [this](std::uint64_t) { return reinterpret_cast<char*>(out.data()); });
  }
  if (kind == 3) return far_broadcast(hosts, id, from, into, count * 4, key % ranks.size());
  return far_all_to_all(hosts, id, from, into, begins);
}

void run_cases(Engine& engine, int members, int rounds, std::size_t largest) {
  std::mt19937 same(7), own(engine.rank() + 100);
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Case>> cases;
    for (int i = 0; i < 24; ++i) {
      const auto groups = groups_of(members);
      const std::size_t chosen = same() % groups.size();
      const auto& group = groups[chosen];
      const std::size_t sizes[] = {0, 1, 13, 1021, 1024, 1025, 40013, same() % largest};
      const std::size_t count = sizes[same() % 8];
      const int kind = static_cast<int>(same() % 6);
      if (std::find(group.begin(), group.end(), engine.rank()) == group.end()) continue;
      cases.push_back(std::make_unique<Case>(group, engine.rank(), 100 * chosen + i + 1, kind, count));
    }
    std::shuffle(cases.begin(), cases.end(), own);
    Results results;
    for (auto& one : cases) engine.submit(one->operation(engine), one->ranks, results.next());
    const std::string error = results.wait();
    if (!error.empty()) return complain(error);
    for (const auto& one : cases) {
      if (one->out != one->wanted) {
        complain("member " + std::to_string(engine.rank()) + ", kind " + std::to_string(one->kind) + ", " +
                 std::to_string(one->count) + " numbers, " + std::to_string(one->ranks.size()) + " members");
      }
    }
  }
}

}  // namespace tfdist::collectives::checks

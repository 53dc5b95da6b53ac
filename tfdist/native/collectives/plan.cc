#include "plan.h"

#include <algorithm>

namespace tfdist::collectives {
namespace {

void add(Plan& plan, Action action, int member, std::uint32_t tag, std::size_t begin, std::size_t end,
         bool output = false) {
  if (end > begin) plan.push_back({action, member, tag, begin, end - begin, output});
}

int members_of(const Parts& parts) { return static_cast<int>(parts.size()) - 1; }

int wrapped(int rank, int members) { return (rank % members + members) % members; }

// Everybody's numbers of a part to the one whose part it is; nobody begins with the same one.
void scatter_and_combine(Plan& plan, int mine, const Parts& parts, std::uint32_t tag) {
  const int members = members_of(parts);
  for (int distance = 1; distance < members; ++distance) {
    const int to = wrapped(mine + distance, members);
    add(plan, Action::kSend, to, tag, parts[to], parts[to + 1]);
  }
  add(plan, Action::kCombine, mine, tag, parts[mine], parts[mine + 1]);
}

void gather_at_once(Plan& plan, int mine, const Parts& parts, std::uint32_t tag) {
  const int members = members_of(parts);
  for (int distance = 1; distance < members; ++distance) {
    const int from = wrapped(mine - distance, members);
    add(plan, Action::kSend, wrapped(mine + distance, members), tag, parts[mine], parts[mine + 1]);
    add(plan, Action::kCopy, from, tag, parts[from], parts[from + 1]);
  }
}

// Member r begins with the part r + `shift`.
void gather_around(Plan& plan, int mine, const Parts& parts, std::uint32_t tag, int shift) {
  const int members = members_of(parts);
  const int right = wrapped(mine + 1, members), left = wrapped(mine - 1, members);
  for (int step = 0; step + 1 < members; ++step) {
    const int sent = wrapped(mine + shift - step, members), received = wrapped(sent - 1, members);
    const std::uint32_t number = tag + static_cast<std::uint32_t>(step);
    add(plan, Action::kSend, right, number, parts[sent], parts[sent + 1]);
    add(plan, Action::kCopy, left, number, parts[received], parts[received + 1]);
  }
}

void ring(Plan& plan, int mine, const Parts& parts) {
  const int members = members_of(parts);
  const int right = wrapped(mine + 1, members), left = wrapped(mine - 1, members);
  for (int step = 0; step + 1 < members; ++step) {
    const int sent = wrapped(mine - step, members), received = wrapped(sent - 1, members);
    const std::uint32_t number = static_cast<std::uint32_t>(step);
    add(plan, Action::kSend, right, number, parts[sent], parts[sent + 1]);
    add(plan, Action::kAdd, left, number, parts[received], parts[received + 1]);
  }
  gather_around(plan, mine, parts, static_cast<std::uint32_t>(members - 1), 1);
}

// Members beyond the largest power of two hand all they have to one below it, and get the result from there.
void halving_doubling(Plan& plan, int mine, int members, std::size_t count) {
  constexpr std::uint32_t kFold = 0, kHalve = 1, kDouble = 33, kUnfold = 65;
  int core = 1;
  while (2 * core <= members) core *= 2;
  if (mine >= core) {
    add(plan, Action::kSend, mine - core, kFold, 0, count);
    add(plan, Action::kCopy, mine - core, kUnfold, 0, count);
    return;
  }
  const bool folds = mine + core < members;
  if (folds) add(plan, Action::kAdd, mine + core, kFold, 0, count);
  struct Round {
    int partner;
    std::uint32_t number;
    std::size_t kept_begin, kept_end, given_begin, given_end;
  };
  std::vector<Round> rounds;
  std::size_t begin = 0, end = count;
  for (int mask = core / 2; mask > 0; mask /= 2) {
    const std::size_t middle = begin + (end - begin) / 2;
    const bool upper = (mine & mask) != 0;
    const std::uint32_t number = static_cast<std::uint32_t>(rounds.size());
    rounds.push_back({mine ^ mask, number, upper ? middle : begin, upper ? end : middle, upper ? begin : middle,
                      upper ? middle : end});
    const Round& round = rounds.back();
    add(plan, Action::kSend, round.partner, kHalve + number, round.given_begin, round.given_end);
    add(plan, Action::kAdd, round.partner, kHalve + number, round.kept_begin, round.kept_end);
    begin = round.kept_begin;
    end = round.kept_end;
  }
  std::reverse(rounds.begin(), rounds.end());
  for (const Round& round : rounds) {
    add(plan, Action::kSend, round.partner, kDouble + round.number, round.kept_begin, round.kept_end);
    add(plan, Action::kCopy, round.partner, kDouble + round.number, round.given_begin, round.given_end);
  }
  if (folds) add(plan, Action::kSend, mine + core, kUnfold, 0, count);
}

void double_tree(Plan& plan, int mine, int members, std::size_t count) {
  constexpr std::uint32_t kUp = 0, kDown = 2;
  for (int tree = 0; tree < 2; ++tree) {
    const std::size_t begin = tree == 0 ? 0 : count / 2, end = tree == 0 ? count / 2 : count;
    const std::uint32_t number = static_cast<std::uint32_t>(tree);
    const TreePlace place = tree_place(tree, mine, members);
    for (const int child : place.children) add(plan, Action::kAdd, child, kUp + number, begin, end);
    if (place.parent >= 0) {
      add(plan, Action::kSend, place.parent, kUp + number, begin, end);
      add(plan, Action::kCopy, place.parent, kDown + number, begin, end);
    }
    for (const int child : place.children) add(plan, Action::kSend, child, kDown + number, begin, end);
  }
}

}  // namespace

Parts even_parts(std::size_t count, int members) {
  Parts parts;
  const std::size_t n = static_cast<std::size_t>(members);
  for (std::size_t rank = 0; rank <= n; ++rank) parts.push_back(count / n * rank + count % n * rank / n);
  return parts;
}

Parts parts_of(const std::vector<std::size_t>& counts) {
  Parts parts{0};
  for (const std::size_t count : counts) parts.push_back(parts.back() + count);
  return parts;
}

Plan all_reduce_plan(Algorithm algorithm, int mine, int members, std::size_t count, bool rounds) {
  Plan plan;
  if (members == 1) return plan;
  const Parts parts = even_parts(count, members);
  switch (algorithm) {
    case Algorithm::kOneShot:
      for (int distance = 1; distance < members; ++distance) {
        add(plan, Action::kSend, wrapped(mine + distance, members), 0, 0, count);
      }
      add(plan, Action::kCombine, mine, 0, 0, count);
      break;
    case Algorithm::kTwoShot:
      scatter_and_combine(plan, mine, parts, 0);
      gather_at_once(plan, mine, parts, 1);
      break;
    case Algorithm::kRing:
      if (!rounds) {
        ring(plan, mine, parts);
        break;
      }
      [[fallthrough]];
    case Algorithm::kTwoShotAround:
      scatter_and_combine(plan, mine, parts, 0);
      gather_around(plan, mine, parts, 1, 0);
      break;
    case Algorithm::kHalvingDoubling:
      halving_doubling(plan, mine, members, count);
      break;
    case Algorithm::kDoubleTree:
      double_tree(plan, mine, members, count);
      break;
  }
  return plan;
}

Plan reduce_scatter_plan(int mine, const Parts& parts) {
  Plan plan;
  if (members_of(parts) > 1) scatter_and_combine(plan, mine, parts, 0);
  return plan;
}

// A ring sends a large part of one member once over each connection; where parts are even, sending them to all at once is
// as many bytes, and waits once.
Plan all_gather_plan(int mine, const Parts& parts) {
  Plan plan;
  const int members = members_of(parts);
  std::size_t largest = 0;
  for (int rank = 0; rank < members; ++rank) largest = std::max(largest, parts[rank + 1] - parts[rank]);
  const std::size_t rest = parts.back() - largest;
  if (largest * static_cast<std::size_t>(members - 1) > rest + rest / 4) {
    gather_around(plan, mine, parts, 0, 0);
  } else {
    gather_at_once(plan, mine, parts, 0);
  }
  return plan;
}

// The root is in neither tree: it hands each half to the top of a tree over the others, so nobody sends more than once
// what there is.
Plan broadcast_plan(int mine, int members, int root, std::size_t count) {
  Plan plan;
  const int others = members - 1;
  const auto rank_of = [&](int place) { return wrapped(root + 1 + place, members); };
  for (int tree = 0; tree < 2 && others > 0; ++tree) {
    const std::size_t begin = tree == 0 ? 0 : count / 2, end = tree == 0 ? count / 2 : count;
    const std::uint32_t tag = static_cast<std::uint32_t>(tree);
    if (mine == root) {
      int top = 0;
      while (tree_place(tree, top, others).parent >= 0) ++top;
      add(plan, Action::kSend, rank_of(top), tag, begin, end);
    } else {
      const TreePlace place = tree_place(tree, wrapped(mine - root - 1, members), others);
      add(plan, Action::kCopy, place.parent < 0 ? root : rank_of(place.parent), tag, begin, end);
      for (const int child : place.children) add(plan, Action::kSend, rank_of(child), tag, begin, end);
    }
  }
  return plan;
}

Plan all_to_all_plan(int mine, const Parts& sent, const Parts& received) {
  Plan plan;
  const int members = members_of(sent);
  for (int distance = 1; distance < members; ++distance) {
    const int to = wrapped(mine + distance, members), from = wrapped(mine - distance, members);
    add(plan, Action::kSend, to, 0, sent[to], sent[to + 1]);
    add(plan, Action::kCopy, from, 0, received[from], received[from + 1], true);
  }
  return plan;
}

// The places of a tree are numbers from 1 on: those that 2^k divides and 2^(k + 1) does not are on level k, and a parent
// is the next number of a higher level. The odd ones are leaves, and the second tree numbers the members in another way.
TreePlace tree_place(int tree, int mine, int members) {
  const auto number_of = [&](int rank) {
    if (tree == 0) return rank + 1;
    if (members % 2 == 0) return members - rank;
    return rank == 0 ? members : rank;
  };
  const auto parent_of = [&](int number) {
    int level = number & -number;
    do {
      number = (number - level) | 2 * level;
      level *= 2;
    } while (number > members && level <= members);
    return number > members ? 0 : number;
  };
  TreePlace place{-1, {}};
  const int number = number_of(mine), parent = parent_of(number);
  for (int rank = 0; rank < members; ++rank) {
    if (number_of(rank) == parent) place.parent = rank;
    if (parent_of(number_of(rank)) == number) place.children.push_back(rank);
  }
  return place;
}

}  // namespace tfdist::collectives

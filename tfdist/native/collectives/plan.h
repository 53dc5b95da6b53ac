// What each member sends, receives and adds in a collective operation: pure functions of its place and the sizes.
//
// A plan is a list of steps in an order in which they are right; whoever carries it out may overlap them as far as their
// ranges allow (planned_operation.h). Every element is reduced along one path and copied from there, so all members get
// the same bits, in every run with the same number of members.

#ifndef TFDIST_NATIVE_COLLECTIVES_PLAN_H_
#define TFDIST_NATIVE_COLLECTIVES_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::collectives {

// S bytes and n members; what each sends, and how many messages follow one another:
enum class Algorithm : std::uint8_t {
  kOneShot,          // (n - 1) S, 1: all to all, and each adds up everything
  kTwoShot,          // 2 S (n - 1) / n, 2: parts to all, each adds up one part, and sends it to all
  kRing,             // 2 S (n - 1) / n, 2 (n - 1): parts around a ring, in pieces
  kHalvingDoubling,  // 2 S (n - 1) / n, 2 log2 n; members beyond a power of two send 2 S more, in 2 messages
  kDoubleTree,       // 2 S, 4 log2 n: up and down two trees, half of the elements in each, in pieces
  kTwoShotAround,    // 2 S (n - 1) / n, n: the first of two shots, and the sums around a ring, in pieces; has no name
};

enum class Action : std::uint8_t {
  kSend,     // the range to a member
  kCopy,     // a member's bytes into the range
  kAdd,      // a member's numbers to those in the range
  kCombine,  // the numbers of all members, in the order of their ranks; rounded once
};

struct Step {
  Action action;
  int member;  // its index in the group; of `kCombine` this one
  std::uint32_t tag;
  std::size_t begin;  // elements
  std::size_t count;
  bool output = false;  // the range is one of the second buffer, which `all_to_all` has
};

using Plan = std::vector<Step>;
// Where the part of each member begins, and where the last one ends.
using Parts = std::vector<std::size_t>;

// Parts as even as they can be: member r of n has the elements from count r / n on.
Parts even_parts(std::size_t count, int members);
// Parts of these sizes.
Parts parts_of(const std::vector<std::size_t>& counts);

// The result is in every member's range of all elements. `rounds`: partial sums would have to be rounded, so the ring
// sends its parts to those who add them up instead, which is as many bytes; halving and doubling and the trees must not
// be asked for.
Plan all_reduce_plan(Algorithm algorithm, int mine, int members, std::size_t count, bool rounds);
// A member's part has the sum afterwards, in the order of ranks; the others' parts are as before.
Plan reduce_scatter_plan(int mine, const Parts& parts);
// Every member has its own part; afterwards all of them.
Plan all_gather_plan(int mine, const Parts& parts);
Plan broadcast_plan(int mine, int members, int root, std::size_t count);
// From the parts of the first buffer, one for each member, to those of the second, one of each member; the own one is left
// to the caller.
Plan all_to_all_plan(int mine, const Parts& sent, const Parts& received);

// A member's place in one of two trees over all members; in the other tree most members that have children here have
// none. -1: no parent.
struct TreePlace {
  int parent;
  std::vector<int> children;
};

TreePlace tree_place(int tree, int mine, int members);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_PLAN_H_

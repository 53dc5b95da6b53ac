// Digests, plans, the choice of an algorithm, what members tell each other.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "../../../tfdist/native/collectives/agreement.h"
#include "../../../tfdist/native/collectives/cost.h"
#include "../../../tfdist/native/collectives/socket.h"
#include "members.h"

namespace tfdist::collectives::checks {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  char two[3];
  for (const std::uint8_t byte : digest) {
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

void check_digests() {
  require(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "SHA-256 of nothing");
  require(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "SHA-256 of abc");
  require(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", "SHA-256 of 56 bytes");
  require(hex(sha256(std::string(1000000, 'a'))) ==
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", "SHA-256 of a million bytes");
  // RFC 4231, cases 1, 2, 3, 6 and 7
  require(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", "RFC 4231, 1");
  require(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", "RFC 4231, 2");
  require(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
              "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe", "RFC 4231, 3");
  require(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54", "RFC 4231, 6");
  require(hex(hmac_sha256(std::string(131, '\xaa'),
                          "This is a test using a larger than block-size key and a larger than block-size data. The "
                          "key needs to be hashed before being used by the HMAC algorithm.")) ==
              "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2", "RFC 4231, 7");
}

void check_trees() {
  for (int members = 1; members <= 40; ++members) {
    int with_children_in_both = 0;
    for (int tree = 0; tree < 2; ++tree) {
      int tops = 0;
      for (int rank = 0; rank < members; ++rank) {
        int depth = 0, above = rank;
        while (tree_place(tree, above, members).parent >= 0 && depth <= members) {
          above = tree_place(tree, above, members).parent;
          ++depth;
        }
        const TreePlace place = tree_place(tree, rank, members);
        tops += place.parent < 0;
        require(depth <= 2 * std::ceil(std::log2(members + 1)), "a tree is flat");
        require(place.children.size() <= 2, "nobody has more than two children");
        with_children_in_both += tree == 1 && !place.children.empty() && !tree_place(0, rank, members).children.empty();
      }
      require(tops == 1, "a tree has one top");
    }
    require(with_children_in_both <= 1, "who has children in one tree has none in the other");
  }
}

// Carries out the plans of all members on lists of names, one step at a time, and looks that each send meets a receive.
void check_plans() {
  for (int members = 1; members <= 17; ++members) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const bool rounds : {false, true}) {
        std::map<std::vector<std::size_t>, int> open;
        std::size_t most = 0;
        for (int rank = 0; rank < members; ++rank) {
          std::size_t sent = 0;
          for (const Step& step : all_reduce_plan(algorithm, rank, members, 1000, rounds)) {
            const auto message = [&](int from, int to) {
              return std::vector<std::size_t>{static_cast<std::size_t>(from), static_cast<std::size_t>(to), step.tag,
                                              step.begin, step.count};
            };
            if (step.action == Action::kSend) {
              ++open[message(rank, step.member)];
              sent += step.count;
            } else if (step.action == Action::kCombine) {
              for (int other = 0; other < members; ++other) open[message(other, rank)] -= other != rank;
            } else {
              --open[message(step.member, rank)];
            }
          }
          most = std::max(most, sent);
        }
        for (const auto& [message, count] : open) require(count == 0, "each message is sent once and received once");
        if (algorithm == Algorithm::kRing) {
          require(most <= 2 * (1000 * (members - 1u) / members + members), "a ring sends 2 S (n - 1) / n");
        }
      }
    }
  }
}

void check_choice() {
  const Line slow{1e-3, 12.5e6}, fast{20e-6, 1.25e9};
  for (const Line& line : {slow, fast}) {
    for (int members = 2; members <= 64; ++members) {
      for (std::size_t bytes = 1; bytes <= (std::size_t{1} << 30); bytes *= 4) {
        const Algorithm chosen = choose(bytes, members, line);
        for (const Algorithm other : kAlgorithms) {
          require(all_reduce_seconds(chosen, bytes, members, line) <=
                      1.06 * all_reduce_seconds(other, bytes, members, line),
                  "what is chosen costs no more than any other");
        }
      }
    }
    require(choose(64, 2, line) == Algorithm::kOneShot, "a few bytes travel once");
    require(choose(1 << 30, 7, line) == Algorithm::kRing, "many bytes go around a ring");
    require(choose_in_rank_order(64, 2, line) == Algorithm::kOneShot, "a few bytes travel once");
    require(choose_in_rank_order(1 << 30, 2, line) == Algorithm::kTwoShot, "many bytes are added up in parts");
    require(choose_in_rank_order(1 << 30, 64, line) == Algorithm::kTwoShot, "the way around many members is long");
  }
  require(choose_in_rank_order(1 << 30, 7, slow) == Algorithm::kTwoShotAround, "sums go around where lines are slow");
  require(choose_in_rank_order(1 << 30, 7, fast) == Algorithm::kTwoShot, "sums go to all at once where they are fast");
  require(choose(256 << 10, 64, {5e-3, 1.25e9}) == Algorithm::kTwoShot, "latency counts where lines are long");
}

void check_agreement() {
  const Doing sum{signature(What::kAllReduce, DType::kFloat32, Op::kSum, 0), 400};
  const Doing other{signature(What::kAllReduce, DType::kFloat32, Op::kMax, 0), 400};
  Agreement agreement(0);
  require(!agreement.hear(1, 7, sum, true), "nothing is said of what is not known");
  const Agreement::Entry* entry = agreement.begin(7, sum, {0, 1, 2});
  require(!agreement.hear(1, 7, sum, true) && entry->there == std::vector<int>{1}, "it is there");
  require(!agreement.hear(1, 7, sum, false) && entry->there == std::vector<int>{1}, "it was there");
  require(!agreement.hear(2, 7, other, false) && !entry->difference.empty(), "an answer shows a difference too");
  agreement.end(7);
  require(agreement.hear(1, 7, sum, true) == sum, "who waits is told that it is done");
  require(!agreement.hear(1, 7, sum, false), "an answer is not answered");
  const Doing rows{signature(What::kAllGather, DType::kUint8, Op::kSum, 0), 20};
  const Doing even{signature(What::kAllGather, DType::kUint8, Op::kSum, kEvenRows), 20};
  const std::string& said = agreement.begin(8, even, {0, 1})->difference;
  agreement.hear(1, 8, rows, true);
  const auto says = [&said](const Doing& one) { return said.find("runs " + described(one)) != std::string::npos; };
  require(says(rows) && says(even) && described(even) != described(rows), "gathers of equal rows are another kind: " + said);
}

// A send buffer is left to the kernel, or holds more than the kernel lets one grow to.
void check_send_buffers() {
  const auto held = [](const Descriptor& of) {
    int bytes = 0;
    socklen_t size = sizeof bytes;
    return getsockopt(of.get(), SOL_SOCKET, SO_SNDBUF, &bytes, &size) == 0 ? bytes : 0;
  };
  const Descriptor untouched(socket(AF_INET, SOCK_STREAM, 0)), configured(socket(AF_INET, SOCK_STREAM, 0));
  configure(configured);
  int least = 0, first = 0, most = 0;
  std::ifstream("/proc/sys/net/ipv4/tcp_wmem") >> least >> first >> most;
  require(held(configured) == held(untouched) || held(configured) > most, "a send buffer is not made smaller");
}

}  // namespace

void check_pure() {
  check_send_buffers();
  check_agreement();
  check_digests();
  check_trees();
  check_plans();
  check_choice();
}

}  // namespace tfdist::collectives::checks

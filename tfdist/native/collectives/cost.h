// Which algorithm is the fastest, by the latency and the bandwidth of the connections: pure, and the same on all members
// that are given the same numbers.
//
// These are measured, so another run may choose another algorithm. Sums of floating-point numbers depend on their order;
// for them the choice is between algorithms that add in the order of ranks, whatever the size: then neither the run nor
// the cut of tensors into messages changes a bit.

#ifndef TFDIST_NATIVE_COLLECTIVES_COST_H_
#define TFDIST_NATIVE_COLLECTIVES_COST_H_

#include <cmath>
#include <cstddef>

#include "plan.h"

namespace tfdist::collectives {

struct Line {
  double latency_seconds;   // from a message's sending to its arrival
  double bytes_per_second;  // of one member, in each direction
};

// What a message costs the processor of each side, whatever its size.
constexpr double kMessageSeconds = 10e-6;

// What a byte costs the processor that adds it up. Only the algorithm in which each member adds up everything pays for it:
// in the others it is hidden behind the bytes that are on their way.
constexpr double kSumSeconds = 0.3e-9;

// The time that an all_reduce takes: messages one after the other, bytes over the member's own connection. What is in
// pieces goes through all hops as one stream, so its first piece alone pays for each of them.
inline double all_reduce_seconds(Algorithm algorithm, std::size_t bytes, int members, const Line& line) {
  if (members < 2) return 0;
  const double n = members, size = static_cast<double>(bytes);
  const double hop = line.latency_seconds + kMessageSeconds;
  const double rounds = std::floor(std::log2(n)), levels = std::ceil(std::log2(n + 1)) - 1;
  const double beyond = n > std::exp2(rounds) ? 1 : 0;
  const double core = std::exp2(rounds);
  const auto over_the_line = [&](double sent) { return sent / line.bytes_per_second; };
  switch (algorithm) {
    case Algorithm::kOneShot:
      return line.latency_seconds + (n - 1) * (kMessageSeconds + size * kSumSeconds) + over_the_line((n - 1) * size);
    case Algorithm::kTwoShot:
      return 2 * (line.latency_seconds + (n - 1) * kMessageSeconds) + over_the_line(2 * size * (n - 1) / n);
    case Algorithm::kRing:
      return 2 * (n - 1) * hop + over_the_line(2 * size * (n - 1) / n);
    case Algorithm::kHalvingDoubling:
      return 2 * (rounds + beyond) * hop + over_the_line(2 * size * (core - 1) / core + beyond * 2 * size);
    case Algorithm::kTwoShotAround:
      return line.latency_seconds + (n - 1) * (kMessageSeconds + hop) + over_the_line(2 * size * (n - 1) / n);
    case Algorithm::kDoubleTree:
      return 2 * levels * hop + over_the_line(2 * size);
  }
  return 0;
}

// The fastest one. Of two that are as fast within a twentieth the ring: each of its members has one other to send to, so
// it does not need a network in which all can send to all at full speed.
inline Algorithm choose(std::size_t bytes, int members, const Line& line) {
  Algorithm best = Algorithm::kRing;
  double least = 0.95 * all_reduce_seconds(best, bytes, members, line);
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kHalvingDoubling,
                                    Algorithm::kDoubleTree}) {
    const double seconds = all_reduce_seconds(algorithm, bytes, members, line);
    if (seconds < least) {
      best = algorithm;
      least = seconds;
    }
  }
  return best;
}

// The faster one of those that add up all members' numbers in one place. To have what all others have takes n - 1 times the
// memory; above this size that is not asked for, however long messages seem to take where processors are busy.
constexpr std::size_t kLargestOneShot = std::size_t{1} << 20;

// Two shots have n - 1 connections share a line twice, which they do unevenly, and the last one counts. On a slow line
// the second shot goes around a ring, where each line has one connection. On a fast line, or with many members, the way
// around takes longer than it saves.
constexpr double kSlowLine = 40e6;  // bytes per second
constexpr int kMostAround = 8;      // members

inline Algorithm choose_in_rank_order(std::size_t bytes, int members, const Line& line) {
  if (bytes > kLargestOneShot) {
    const bool around = members > 2 && members <= kMostAround && line.bytes_per_second < kSlowLine;
    return around ? Algorithm::kTwoShotAround : Algorithm::kTwoShot;
  }
  const double one_shot = all_reduce_seconds(Algorithm::kOneShot, bytes, members, line);
  const double two_shot = all_reduce_seconds(Algorithm::kTwoShot, bytes, members, line);
  return one_shot < two_shot ? Algorithm::kOneShot : Algorithm::kTwoShot;
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_COST_H_

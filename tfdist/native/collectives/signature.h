// What an operation is: what members compare, and how it is said in messages.

#ifndef TFDIST_NATIVE_COLLECTIVES_SIGNATURE_H_
#define TFDIST_NATIVE_COLLECTIVES_SIGNATURE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "dtype.h"

namespace tfdist::collectives {

enum class What : std::uint8_t { kAllReduce, kReduceScatter, kAllToAll, kAllGather, kBroadcast, kSend };

// In the place of a root: an all_gather in which every member has as many rows.
constexpr std::size_t kEvenRows = 1;

constexpr std::uint64_t signature(What kind, DType dtype, Op op, std::size_t root) {
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(op) << 16 |
         static_cast<std::uint64_t>(root) << 32;
}

// An operation as a member runs it; alike on all.
struct Doing {
  std::uint64_t signature = 0;
  std::uint64_t size = 0;  // in bytes; of what depends on the kind

  bool operator==(const Doing& other) const { return signature == other.signature && size == other.size; }
  bool operator!=(const Doing& other) const { return !(*this == other); }
};

// "all_reduce (sum, float32) of 400 bytes"
inline std::string described(const Doing& doing) {
  static const char* const kinds[] = {"all_reduce", "reduce_scatter", "all_to_all", "all_gather", "broadcast", "send"};
  static const char* const ops[] = {"sum", "min", "max"};
  static const char* const dtypes[] = {"float16", "bfloat16", "float32", "float64", "int8",   "int16", "int32",
                                       "int64",   "uint8",    "uint16",  "uint32",  "uint64", "bool"};
  const auto kind = static_cast<What>(doing.signature & 0xff);
  std::string text = kinds[(doing.signature & 0xff) % 6];
  if (kind == What::kAllReduce || kind == What::kReduceScatter) {
    text += std::string(" (") + ops[(doing.signature >> 16 & 0xff) % 3] + ", " + dtypes[(doing.signature >> 8 & 0xff) % 13] + ")";
  }
  if (kind == What::kBroadcast) text += " from member " + std::to_string(doing.signature >> 32);
  const bool is_uneven = kind == What::kAllGather && doing.signature >> 32 != kEvenRows;
  text += (is_uneven ? " of rows of " : " of ") + std::to_string(doing.size) + " bytes";
  return text + (kind == What::kAllGather && !is_uneven ? " from each member" : "");
}

// The error of members that run different operations under one number; the same whoever finds it out.
inline std::string difference(int rank, const Doing& one, int other_rank, const Doing& other) {
  if (other_rank < rank) return difference(other_rank, other, rank, one);
  return "Members do different things: member " + std::to_string(rank) + " runs " + described(one) + ", and member " +
         std::to_string(other_rank) + " runs " + described(other);
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SIGNATURE_H_

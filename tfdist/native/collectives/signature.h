// What members do in an operation, in a number that is alike on all of them, and in words.

#ifndef TFDIST_NATIVE_COLLECTIVES_SIGNATURE_H_
#define TFDIST_NATIVE_COLLECTIVES_SIGNATURE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "dtype.h"

namespace tfdist::collectives {

enum class What : std::uint8_t { kAllReduce, kReduceScatter, kAllToAll, kAllGather, kBroadcast, kSend };

inline std::uint64_t signature(What kind, DType dtype, Op op, std::size_t root) {
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(op) << 16 |
         static_cast<std::uint64_t>(root) << 32;
}

// `size`: in bytes; of what depends on the kind.
inline std::string described(std::uint64_t signature, std::uint64_t size) {
  static const char* const kinds[] = {"all_reduce", "reduce_scatter", "all_to_all", "all_gather", "broadcast", "send"};
  static const char* const ops[] = {"sum", "min", "max"};
  const auto kind = static_cast<What>(signature & 0xff);
  std::string text = kinds[(signature & 0xff) % 6];
  if (kind == What::kAllReduce || kind == What::kReduceScatter) {
    text += std::string(" (") + ops[((signature >> 16) & 0xff) % 3] + ", dtype " +
            std::to_string((signature >> 8) & 0xff) + ")";
  }
  if (kind == What::kBroadcast) text += " from member " + std::to_string(signature >> 32);
  return text + (kind == What::kAllGather ? " of rows of " : " of ") + std::to_string(size) + " bytes";
}

// What is said where two members do not do the same.
inline std::string difference(int one, const std::string& does, int other, const std::string& does_other) {
  return "Members do different things: member " + std::to_string(one) + " runs " + does + ", and member " +
         std::to_string(other) + " runs " + does_other;
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SIGNATURE_H_

// What is reduced, and how: dtypes, operations, and loops over arrays that the compiler makes vector instructions of.
//
// Integers wrap, sums of bools are "any", and a NaN anywhere makes a minimum or a maximum NaN. 16-bit floats are added in
// float32: `reduce` rounds once, behind the last addition; who reduces in several steps carries the dtype that
// `accumulator` names, and rounds with `convert` at the end.

#ifndef TFDIST_NATIVE_COLLECTIVES_DTYPE_H_
#define TFDIST_NATIVE_COLLECTIVES_DTYPE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "stream.h"

namespace tfdist::collectives {

enum class DType : std::uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kBool,
};

enum class Op : std::uint8_t { kSum, kMin, kMax };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
    case DType::kBool:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUint16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUint32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUint64:
      return 8;
  }
  return 0;
}

// The dtype of partial results: float32 for sums of 16-bit floats, else the dtype itself.
constexpr DType accumulator(DType dtype, Op op) {
  return op == Op::kSum && (dtype == DType::kFloat16 || dtype == DType::kBFloat16) ? DType::kFloat32 : dtype;
}

// Whether a sum is the same in whatever order it is added up.
constexpr bool is_exact(DType dtype) {
  return dtype != DType::kFloat16 && dtype != DType::kBFloat16 && dtype != DType::kFloat32 && dtype != DType::kFloat64;
}

struct Half {
  std::uint16_t bits;
};
struct BHalf {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t value;
};

namespace internal {

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// No float32 below its smallest normal number occurs here, so a thread that flushes those to zero gets the same.
inline float widen(Half half) {
  constexpr std::uint32_t kExponent = 0x7c00u << 13;
  std::uint32_t bits = static_cast<std::uint32_t>(half.bits & 0x7fffu) << 13;
  const std::uint32_t exponent = bits & kExponent;
  bits += (127u - 15u) << 23;
  const std::uint32_t sign = static_cast<std::uint32_t>(half.bits & 0x8000u) << 16;
  if (exponent == kExponent) bits += (128u - 16u) << 23;  // infinity or NaN
  if (exponent == 0) bits = bits_of(float_of(bits + (1u << 23)) - float_of(113u << 23));
  return float_of(bits | sign);
}

inline float widen(BHalf half) { return float_of(static_cast<std::uint32_t>(half.bits) << 16); }

// To the nearest, to the even one of two.
inline void narrow(float value, Half* half) {
  std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  std::uint32_t result;
  if (bits > 0x7f800000u) {
    result = 0x7e00u;
  } else if (bits >= (127u + 16u) << 23) {
    result = 0x7c00u;
  } else if (bits < 113u << 23) {  // below the smallest normal number: an addition puts the mantissa in its place
    constexpr std::uint32_t kMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
    result = bits_of(float_of(bits) + float_of(kMagic)) - kMagic;
  } else {
    result = (bits - ((127u - 15u) << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  }
  half->bits = static_cast<std::uint16_t>(result | sign);
}

inline void narrow(float value, BHalf* half) {
  const std::uint32_t bits = bits_of(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  half->bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BHalf>;

template <Op op, typename T>
inline T combined(T a, T b) {
  if constexpr (kIsHalf<T>) {
    const float x = widen(a), y = widen(b);
    if constexpr (op == Op::kSum) {
      T total;
      narrow(x + y, &total);
      return total;
    } else {
      return (op == Op::kMin ? y < x : y > x) || y != y ? b : a;
    }
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(op == Op::kMin ? a.value & b.value : a.value | b.value)};
  } else if constexpr (op == Op::kSum && std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else if constexpr (op == Op::kSum) {
    return a + b;
  } else {
    return (op == Op::kMin ? b < a : b > a) || b != b ? b : a;
  }
}

template <Op op, typename T>
void accumulate(T* __restrict into, const T* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] = combined<op>(into[i], from[i]);
}

// Where a result goes as well; nowhere if it is null.
template <typename T>
struct Copy {
  T* to;
  bool streams;
};

// So many numbers, which are all read before one is written.
template <Op op, std::size_t numbers, typename T>
inline void reduce_some(T* into, Copy<T> copy, const void* const* parts, std::size_t members, std::size_t begin) {
  const auto part = [&](std::size_t member) { return static_cast<const T*>(parts[member]) + begin; };
  T line[numbers];
  if constexpr (kIsHalf<T> && op == Op::kSum) {
    float total[numbers];
    for (std::size_t i = 0; i < numbers; ++i) total[i] = widen(part(0)[i]);
    for (std::size_t member = 1; member < members; ++member) {
      for (std::size_t i = 0; i < numbers; ++i) total[i] += widen(part(member)[i]);
    }
    for (std::size_t i = 0; i < numbers; ++i) narrow(total[i], &line[i]);
  } else {
    for (std::size_t i = 0; i < numbers; ++i) line[i] = combined<op>(part(0)[i], part(1)[i]);
    for (std::size_t member = 2; member < members; ++member) {
      for (std::size_t i = 0; i < numbers; ++i) line[i] = combined<op>(line[i], part(member)[i]);
    }
  }
  std::memcpy(into + begin, line, sizeof line);
  if (copy.to == nullptr) return;
  if (copy.streams) {
    stream_line(copy.to + begin, line);
  } else {
    std::memcpy(copy.to + begin, line, sizeof line);
  }
}

template <Op op, typename T>
void reduce(T* into, Copy<T> copy, const void* const* parts, std::size_t members, std::size_t count) {
  if (members == 1) {
    if (into != parts[0] && count > 0) std::memcpy(into, parts[0], count * sizeof(T));
    if (copy.to != nullptr && count > 0) std::memcpy(copy.to, parts[0], count * sizeof(T));
    return;
  }
  constexpr std::size_t kNumbers = kLine / sizeof(T);
  const bool lined_up = before_line(copy.to) % sizeof(T) == 0;
  const std::size_t head = copy.streams && lined_up ? std::min(count, before_line(copy.to) / sizeof(T)) : 0;
  const std::size_t end = head + (count - head) / kNumbers * kNumbers;
  const Copy<T> plain{copy.to, false}, lines{copy.to, copy.streams && lined_up};
  for (std::size_t i = 0; i < head; ++i) reduce_some<op, 1>(into, plain, parts, members, i);
  for (std::size_t i = head; i < end; i += kNumbers) reduce_some<op, kNumbers>(into, lines, parts, members, i);
  for (std::size_t i = end; i < count; ++i) reduce_some<op, 1>(into, plain, parts, members, i);
  if (lines.streams) end_stream();
}

// Calls `function` with a null pointer of the dtype's type.
template <typename Function>
void with_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat16:
      return function(static_cast<Half*>(nullptr));
    case DType::kBFloat16:
      return function(static_cast<BHalf*>(nullptr));
    case DType::kFloat32:
      return function(static_cast<float*>(nullptr));
    case DType::kFloat64:
      return function(static_cast<double*>(nullptr));
    case DType::kInt8:
      return function(static_cast<std::int8_t*>(nullptr));
    case DType::kInt16:
      return function(static_cast<std::int16_t*>(nullptr));
    case DType::kInt32:
      return function(static_cast<std::int32_t*>(nullptr));
    case DType::kInt64:
      return function(static_cast<std::int64_t*>(nullptr));
    case DType::kUint8:
      return function(static_cast<std::uint8_t*>(nullptr));
    case DType::kUint16:
      return function(static_cast<std::uint16_t*>(nullptr));
    case DType::kUint32:
      return function(static_cast<std::uint32_t*>(nullptr));
    case DType::kUint64:
      return function(static_cast<std::uint64_t*>(nullptr));
    case DType::kBool:
      return function(static_cast<Bool*>(nullptr));
  }
}

template <typename Function>
void with_op(Op op, Function function) {
  switch (op) {
    case Op::kSum:
      return function(std::integral_constant<Op, Op::kSum>());
    case Op::kMin:
      return function(std::integral_constant<Op, Op::kMin>());
    case Op::kMax:
      return function(std::integral_constant<Op, Op::kMax>());
  }
}

}  // namespace internal

// into[i] = into[i] op from[i]. The arrays do not overlap. Of 16-bit floats each sum is rounded: carry `accumulator`.
inline void accumulate(DType dtype, Op op, void* into, const void* from, std::size_t count) {
  internal::with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    internal::with_op(op, [&](auto constant) {
      internal::accumulate<decltype(constant)::value, T>(static_cast<T*>(into), static_cast<const T*>(from), count);
    });
  });
}

// into[i] = parts[0][i] op parts[1][i] op ..., in this order, rounded once; and the same in `also`, if that is not null:
// past the caches if it `streams`. Both may be one of the parts.
inline void reduce(DType dtype, Op op, void* into, const void* const* parts, std::size_t members, std::size_t count,
                   void* also = nullptr, bool streams = false) {
  internal::with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    internal::with_op(op, [&](auto constant) {
      internal::reduce<decltype(constant)::value, T>(static_cast<T*>(into), {static_cast<T*>(also), streams}, parts,
                                                     members, count);
    });
  });
}

// Copies `count` numbers from `dtype` to its `accumulator`, or back: between 16-bit floats and float32, or alike.
inline void convert(DType from_dtype, const void* from, DType into_dtype, void* into, std::size_t count) {
  const auto to_float = [&](const auto* half) {
    for (std::size_t i = 0; i < count; ++i) static_cast<float*>(into)[i] = internal::widen(half[i]);
  };
  const auto to_half = [&](auto* half) {
    for (std::size_t i = 0; i < count; ++i) internal::narrow(static_cast<const float*>(from)[i], half + i);
  };
  if (from_dtype == into_dtype) {
    if (count > 0) std::memcpy(into, from, count * size_of(from_dtype));
  } else if (from_dtype == DType::kFloat16) {
    to_float(static_cast<const Half*>(from));
  } else if (from_dtype == DType::kBFloat16) {
    to_float(static_cast<const BHalf*>(from));
  } else if (into_dtype == DType::kFloat16) {
    to_half(static_cast<Half*>(into));
  } else {
    to_half(static_cast<BHalf*>(into));
  }
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_DTYPE_H_

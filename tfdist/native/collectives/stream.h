// Writing past the processor's caches, for what is far larger than they are: a line that is written as a whole need not be
// read from memory first, and pushes nothing out that will be needed.

#ifndef TFDIST_NATIVE_COLLECTIVES_STREAM_H_
#define TFDIST_NATIVE_COLLECTIVES_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "layout.h"

namespace tfdist::collectives {

// Writes a line to an address that is a multiple of its size. Other threads may see it only after `end_stream`.
inline void stream_line(void* into, const void* from) {
#ifdef __SSE2__
  auto* to = static_cast<__m128i*>(into);
  const auto* part = static_cast<const __m128i*>(from);
  const __m128i a = _mm_loadu_si128(part), b = _mm_loadu_si128(part + 1);
  const __m128i c = _mm_loadu_si128(part + 2), d = _mm_loadu_si128(part + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
#else
  std::memcpy(into, from, kLine);
#endif
}

// What was streamed comes before whatever is stored from here on.
inline void end_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Bytes until the next line begins.
inline std::size_t before_line(const void* data) { return -reinterpret_cast<std::uintptr_t>(data) % kLine; }

// As memcpy. The memory does not overlap.
inline void stream_copy(void* into, const void* from, std::size_t bytes) {
  auto* to = static_cast<char*>(into);
  const auto* part = static_cast<const char*>(from);
  const std::size_t head = std::min(bytes, before_line(into)), end = head + (bytes - head) / kLine * kLine;
  std::memcpy(to, part, head);
  for (std::size_t at = head; at < end; at += kLine) stream_line(to + at, part + at);
  std::memcpy(to + end, part + end, bytes - end);
  end_stream();
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_STREAM_H_

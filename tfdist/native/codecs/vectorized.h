// Loops that compilers turn into vector instructions, for every kind of processor.

#ifndef TFDIST_NATIVE_CODECS_VECTORIZED_H_
#define TFDIST_NATIVE_CODECS_VECTORIZED_H_

// A function is compiled once for any x86 and once for those with AVX2, and the processor's own is taken when the library
// is loaded. Elsewhere one is enough: what all have is good (aarch64), or the loader cannot choose.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(TFDIST_PORTABLE_CODECS)
#define TFDIST_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define TFDIST_VECTORIZED
#endif

// What such functions call has to become a part of them, or it would be compiled for any processor.
#define TFDIST_PART_OF_VECTORIZED inline __attribute__((always_inline))

#endif  // TFDIST_NATIVE_CODECS_VECTORIZED_H_

// One loop, compiled twice: for any processor, and for AVX2 (with its companion F16C). Which one runs is chosen then.
//
// EAGLE3REF_SIMD=plain takes the plain one on every processor: tests compare the two. There is no multiply-add in AVX2
// code compiled so, and no reordering of floating-point sums, so both give the same bits.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define EAGLE3REF_AVX2 1
#define EAGLE3REF_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#include <immintrin.h>
#endif

namespace eagle3ref {

// Asked once a call, by the calling thread: another would race with a Python that sets its environment.
inline bool use_avx2() {
#ifdef EAGLE3REF_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const char* asked = std::getenv("EAGLE3REF_SIMD");
  return has_avx2 && !(asked != nullptr && std::strcmp(asked, "plain") == 0);
#else
  return false;
#endif
}

#ifdef EAGLE3REF_AVX2
template <class Body>
EAGLE3REF_TARGET_AVX2 void run_with_avx2(const Body& body, int64_t begin, int64_t end) {
  body(begin, end);
}
#endif

// body(begin, end), which is EAGLE3REF_INLINE so that its loops are compiled for the chosen instruction set.
template <class Body>
void run(bool with_avx2, const Body& body, int64_t begin, int64_t end) {
#ifdef EAGLE3REF_AVX2
  if (with_avx2) return run_with_avx2(body, begin, end);
#else
  (void)with_avx2;
#endif
  body(begin, end);
}

}  // namespace eagle3ref

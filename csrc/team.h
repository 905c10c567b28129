// Who works on one sequence: a thread of the CPU, or a warp of the GPU.
//
// The functions of tree.h and verify.h are written once, for a team. Each member takes the items rank(), rank() + size(),
// ... of a loop, and what they must know of one another they ask the team. So the two twins cannot come apart.

#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define EAGLE3REF_INLINE __host__ __device__ __forceinline__
#else
// Forced, so that the caller's instruction set (cpu/simd.h) reaches into the loops.
#define EAGLE3REF_INLINE inline __attribute__((always_inline))
#endif

namespace eagle3ref {

// How many members of lower rank hold a flag, and how many of all.
struct Counted {
  int64_t below;
  int64_t all;
};

struct OneThread {
  EAGLE3REF_INLINE int64_t rank() const { return 0; }
  EAGLE3REF_INLINE int64_t size() const { return 1; }
  EAGLE3REF_INLINE void sync() const {}
  EAGLE3REF_INLINE int64_t sum(int64_t value) const { return value; }
  EAGLE3REF_INLINE Counted count(bool flag) const { return {0, flag}; }
};

#ifdef __CUDACC__
// All 32 lanes come to every call together.
struct Warp {
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ __forceinline__ int64_t rank() const { return threadIdx.x % 32; }
  __device__ __forceinline__ int64_t size() const { return 32; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }

  __device__ __forceinline__ int64_t sum(int64_t value) const {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAll, value, distance);
    return value;
  }

  __device__ __forceinline__ Counted count(bool flag) const {
    const unsigned flags = __ballot_sync(kAll, flag);
    return {__popc(flags & ((1u << rank()) - 1)), __popc(flags)};
  }
};
#endif

}  // namespace eagle3ref

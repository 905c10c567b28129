// What SGLang's kernel of target-only sampling needs of CUDA, CUB and FlashInfer, for one thread that does a whole row.
//
// With one thread and a vector as wide as the row, a block's sum is a sum and a block's scan is a running sum, in order
// of index. On a GPU they are added in another order, so a coin that falls within rounding of a boundary may decide
// otherwise there.
#pragma once

#include <algorithm>
#include <cstdint>

#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads()

using std::max;

struct Index {
  uint32_t x;
};
static Index blockIdx{0};
static const Index threadIdx{0};

namespace cub {
enum BlockScanAlgorithm { ANY_SCAN };
enum BlockReduceAlgorithm { ANY_REDUCE };

struct Nothing {};

template <typename T, int THREADS, BlockReduceAlgorithm ALGORITHM>
struct BlockReduce {
  explicit BlockReduce(Nothing&) {}
  template <int WIDTH>
  T Sum(const T (&values)[WIDTH]) const {
    T sum = 0;
    for (T value : values) sum += value;
    return sum;
  }
};
}  // namespace cub

namespace flashinfer {
inline uint32_t ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

template <typename T, uint32_t WIDTH>
struct vec_t {
  T values[WIDTH];
  void fill(T value) { std::fill(values, values + WIDTH, value); }
  void load(const T* source) { std::copy(source, source + WIDTH, values); }
  T& operator[](uint32_t i) { return values[i]; }
};

namespace sampling {
template <uint32_t THREADS, cub::BlockScanAlgorithm SCAN, cub::BlockReduceAlgorithm REDUCE>
struct SamplingTempStorage {
  struct {
    cub::Nothing reduce;
  } block_prim;
  struct {
    float value;
  } block_aggregate;
  int sampled_id;
  int last_valid_id;
};

// The first valid index whose running sum passes u, and the last valid one.
template <uint32_t WIDTH, uint32_t THREADS, cub::BlockScanAlgorithm SCAN, cub::BlockReduceAlgorithm REDUCE,
          bool DETERMINISTIC, typename Predicate, typename Storage>
void DeviceSamplingFromProb(uint32_t block, uint32_t row_width, Predicate valid, float u,
                            vec_t<float, WIDTH> probabilities, float& running_sum, Storage* storage) {
  for (uint32_t j = 0; j < WIDTH; ++j) {
    const uint32_t index = block * WIDTH + j;
    running_sum += probabilities[j];
    if (index >= row_width || !valid(probabilities[j])) continue;
    if (running_sum > u && storage->sampled_id == static_cast<int>(row_width)) storage->sampled_id = index;
    storage->last_valid_id = index;
  }
}
}  // namespace sampling
}  // namespace flashinfer

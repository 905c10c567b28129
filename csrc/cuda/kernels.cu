#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../int4.h"
#include "kernels.h"

namespace eagle3ref::cuda {
namespace {

constexpr int kThreads = 256;

// A grid of blocks of one warp, one a sequence: blockIdx.x is the sequence.
int64_t blocks_of(int64_t items) { return (items + kThreads - 1) / kThreads; }

__device__ int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <class Score, class Key>
__global__ void build_trees_kernel(Candidates<Score> candidates, const int64_t* root_tokens,
                                   const int64_t* prefix_lengths, Tree trees, bool* refused, Key* keys,
                                   int32_t* node_of) {
  const int64_t i = blockIdx.x, scratch = i * candidates.num_candidates;
  const bool wrong = build_tree(Warp{}, candidates.of(i), root_tokens[i], prefix_lengths[i], trees.of(i),
                                keys + scratch, node_of + scratch);
  if (threadIdx.x == 0) refused[i] = wrong;
}

__global__ void verify_greedy_kernel(DraftNodes trees, const int64_t* target_tokens, Verified verified) {
  const int64_t i = blockIdx.x;
  eagle3ref::verify_greedy(Warp{}, trees.of(i), target_tokens + i * trees.num_nodes, verified.of(i, trees.num_nodes));
}

// That the probabilities are ones would take a pass over all of them, and nobody could be told.
template <class Prob>
__global__ void verify_target_only_kernel(DraftNodes trees, TargetOnly<Prob> target, Verified verified,
                                          int64_t* removed) {
  const int64_t i = blockIdx.x, size = trees.num_nodes;
  eagle3ref::verify_target_only(Warp{}, trees.of(i), target.of(i, size), true, verified.of(i, size),
                                removed + i * size);
}

__global__ void visited_positions_kernel(const int64_t* num_accepted, int64_t num_roots, bool* visited) {
  const int64_t start = blockIdx.x * num_roots;
  visit_positions(Warp{}, num_accepted + start, num_roots, visited + start);
}

__global__ void tally_settings_kernel(Walks walks, int64_t* histogram, int64_t* censored) {
  const int64_t i = thread_index();
  if (i < walks.num_settings * walks.num_sequences) {
    tally(walks, i / walks.num_sequences, i % walks.num_sequences, histogram, censored);
  }
}

// The eight of a word go out in as few stores as their width allows.
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) Eight {
  T values[kPerWord];
};

__global__ void unpack_int4_kernel(const int32_t* packed, int64_t num_words, int8_t* values) {
  const int64_t i = thread_index();
  if (i >= num_words) return;
  const auto word = static_cast<uint32_t>(packed[i]);
  Eight<int8_t> out;
  for (int column = 0; column < kPerWord; ++column) out.values[column] = int4_value(word >> (4 * column) & 15);
  reinterpret_cast<Eight<int8_t>*>(values)[i] = out;
}

__device__ float widened(float scale) { return scale; }
__device__ float widened(__half scale) { return __half2float(scale); }
__device__ float widened(__nv_bfloat16 scale) { return __bfloat162float(scale); }
__device__ void round_to(float value, float& out) { out = value; }
__device__ void round_to(float value, __half& out) { out = __float2half_rn(value); }
__device__ void round_to(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }

template <class T>
__global__ void dequantize_int4_kernel(const int32_t* packed, const T* scales, int64_t num_words, T* weights) {
  const int64_t i = thread_index();
  if (i >= num_words) return;
  const auto word = static_cast<uint32_t>(packed[i]);
  const float scale = widened(scales[i / (kGroupSize / kPerWord)]);
  Eight<T> out;
  for (int column = 0; column < kPerWord; ++column) {
    round_to(int4_value(word >> (4 * column) & 15) * scale, out.values[column]);
  }
  reinterpret_cast<Eight<T>*>(weights)[i] = out;
}

}  // namespace

template <class Score, class Key>
cudaError_t build_trees(const Candidates<Score>& candidates, const int64_t* root_tokens, const int64_t* prefix_lengths,
                        const Tree& trees, bool* refused, Key* keys, int32_t* node_of, int64_t batch,
                        cudaStream_t stream) {
  build_trees_kernel<<<batch, 32, 0, stream>>>(candidates, root_tokens, prefix_lengths, trees, refused, keys, node_of);
  return cudaGetLastError();
}

template cudaError_t build_trees(const Candidates<float>&, const int64_t*, const int64_t*, const Tree&, bool*,
                                 uint32_t*, int32_t*, int64_t, cudaStream_t);
template cudaError_t build_trees(const Candidates<double>&, const int64_t*, const int64_t*, const Tree&, bool*,
                                 uint64_t*, int32_t*, int64_t, cudaStream_t);

cudaError_t verify_greedy(const DraftNodes& trees, const int64_t* target_tokens, const Verified& verified,
                          int64_t batch, cudaStream_t stream) {
  verify_greedy_kernel<<<batch, 32, 0, stream>>>(trees, target_tokens, verified);
  return cudaGetLastError();
}

template <class Prob>
cudaError_t verify_target_only(const DraftNodes& trees, const TargetOnly<Prob>& target, const Verified& verified,
                               int64_t* removed, int64_t batch, cudaStream_t stream) {
  verify_target_only_kernel<<<batch, 32, 0, stream>>>(trees, target, verified, removed);
  return cudaGetLastError();
}

template cudaError_t verify_target_only(const DraftNodes&, const TargetOnly<float>&, const Verified&, int64_t*,
                                        int64_t, cudaStream_t);
template cudaError_t verify_target_only(const DraftNodes&, const TargetOnly<double>&, const Verified&, int64_t*,
                                        int64_t, cudaStream_t);

cudaError_t visited_positions(const int64_t* num_accepted, int64_t lanes, int64_t num_roots, bool* visited,
                              cudaStream_t stream) {
  visited_positions_kernel<<<lanes, 32, 0, stream>>>(num_accepted, num_roots, visited);
  return cudaGetLastError();
}

cudaError_t tally_settings(const Walks& walks, int64_t* histogram, int64_t* censored, cudaStream_t stream) {
  const int64_t blocks = blocks_of(walks.num_settings * walks.num_sequences);
  tally_settings_kernel<<<blocks, kThreads, 0, stream>>>(walks, histogram, censored);
  return cudaGetLastError();
}

cudaError_t unpack_int4(const int32_t* packed, int64_t num_words, int8_t* values, cudaStream_t stream) {
  unpack_int4_kernel<<<blocks_of(num_words), kThreads, 0, stream>>>(packed, num_words, values);
  return cudaGetLastError();
}

template <class T>
static void launch_dequantize(const int32_t* packed, const void* scales, int64_t num_words, void* weights,
                              cudaStream_t stream) {
  dequantize_int4_kernel<<<blocks_of(num_words), kThreads, 0, stream>>>(packed, static_cast<const T*>(scales),
                                                                        num_words, static_cast<T*>(weights));
}

cudaError_t dequantize_int4(const int32_t* packed, const void* scales, Weight type, int64_t num_words, void* weights,
                            cudaStream_t stream) {
  switch (type) {
    case Weight::bf16:
      launch_dequantize<__nv_bfloat16>(packed, scales, num_words, weights, stream);
      break;
    case Weight::fp16:
      launch_dequantize<__half>(packed, scales, num_words, weights, stream);
      break;
    case Weight::fp32:
      launch_dequantize<float>(packed, scales, num_words, weights, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace eagle3ref::cuda

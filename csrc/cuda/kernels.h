// The CUDA kernels, as functions of plain pointers on the device. Each returns what its launch returned.

#pragma once

#include <cuda_runtime_api.h>

#include "../tree.h"
#include "../verify.h"
#include "../walk.h"

namespace eagle3ref::cuda {

// The views are of the first of the sequences. keys and node_of are scratch [B, M].
template <class Score, class Key>
cudaError_t build_trees(const Candidates<Score>& candidates, const int64_t* root_tokens, const int64_t* prefix_lengths,
                        const Tree& trees, bool* refused, Key* keys, int32_t* node_of, int64_t batch,
                        cudaStream_t stream);

cudaError_t verify_greedy(const DraftNodes& trees, const int64_t* target_tokens, const Verified& verified,
                          int64_t batch, cudaStream_t stream);

// removed is scratch [B, N].
template <class Prob>
cudaError_t verify_target_only(const DraftNodes& trees, const TargetOnly<Prob>& target, const Verified& verified,
                               int64_t* removed, int64_t batch, cudaStream_t stream);

cudaError_t visited_positions(const int64_t* num_accepted, int64_t lanes, int64_t num_roots, bool* visited,
                              cudaStream_t stream);

cudaError_t tally_settings(const Walks& walks, int64_t* histogram, int64_t* censored, cudaStream_t stream);

cudaError_t unpack_int4(const int32_t* packed, int64_t num_words, int8_t* values, cudaStream_t stream);

enum class Weight { bf16, fp16, fp32 };

cudaError_t dequantize_int4(const int32_t* packed, const void* scales, Weight type, int64_t num_words, void* weights,
                            cudaStream_t stream);

}  // namespace eagle3ref::cuda

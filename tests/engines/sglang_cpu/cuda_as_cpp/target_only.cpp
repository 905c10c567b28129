// SGLang's kernel of target-only sampling as a C function; VOCABULARY is set when it is compiled.
#include "speculative_sampling.h"  // sampling.cuh of the installed SGLang

namespace sglang::speculative_sampling {
alignas(64) uint8_t smem_sampling[256];
}

extern "C" void target_only(int32_t* predicts, int32_t* accept_index, int32_t* accept_token_num, int64_t* candidates,
                            int64_t* retrive_index, int64_t* retrive_next_token, int64_t* retrive_next_sibling,
                            float* coins, float* final_coins, float* target_probs, float* draft_probs,
                            uint32_t batch_size, uint32_t width, uint32_t num_draft_tokens, float threshold_single,
                            float threshold_acc) {
  using namespace sglang::speculative_sampling;
  for (blockIdx.x = 0; blockIdx.x < batch_size; ++blockIdx.x) {
    TreeSpeculativeSamplingTargetOnly<1, cub::ANY_SCAN, cub::ANY_REDUCE, VOCABULARY, true, float, int32_t, int64_t>(
        predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, retrive_next_sibling,
        coins, final_coins, target_probs, draft_probs, batch_size, width, num_draft_tokens, VOCABULARY,
        threshold_single, threshold_acc);
  }
}

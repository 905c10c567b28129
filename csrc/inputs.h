// The operators' arguments, checked, in rows one after the other, with their sizes: what the CPU and the CUDA ones share.

#pragma once

#include "tensors.h"
#include "tree.h"
#include "verify.h"
#include "walk.h"

namespace eagle3ref {

struct CandidateInputs {
  Tensor scores, tokens, parents, root_tokens, prefix_lengths;
  int64_t batch, size;
  bool is_double;

  CandidateInputs(const Tensor& scores_in, const Tensor& tokens_in, const Tensor& parents_in, const Tensor& roots_in,
                  const Tensor& prefix_lengths_in, int64_t num_draft_tokens)
      : batch(rows_of(scores_in)), size(scores_in.size(1)), is_double(scores_in.scalar_type() == ScalarType::Double) {
    STD_TORCH_CHECK(num_draft_tokens >= 2 && num_draft_tokens <= size + 1, "eagle3ref_native: num_draft_tokens");
    scores = checked(scores_in, "scores", is_double ? ScalarType::Double : ScalarType::Float, {batch, size});
    tokens = checked(tokens_in, "tokens", ScalarType::Long, {batch, size});
    parents = checked(parents_in, "parents", ScalarType::Long, {batch, size});
    root_tokens = checked(roots_in, "root_tokens", ScalarType::Long, {batch});
    prefix_lengths = checked(prefix_lengths_in, "prefix_lengths", ScalarType::Long, {batch});
  }

  static int64_t rows_of(const Tensor& scores) {
    STD_TORCH_CHECK(scores.dim() == 2, "eagle3ref_native: scores are not [B, M]");
    return scores.size(0);
  }

  template <class Score>
  Candidates<Score> first() const {
    return {read<Score>(scores), read<int64_t>(tokens), read<int64_t>(parents), size};
  }
};

struct TreeInputs {
  Tensor tokens, parents;
  int64_t batch, size;

  TreeInputs(const Tensor& tokens_in, const Tensor& parents_in) : batch(rows_of(tokens_in)), size(tokens_in.size(1)) {
    tokens = checked(tokens_in, "tokens", ScalarType::Long, {batch, size});
    parents = checked(parents_in, "parents", ScalarType::Long, {batch, size});
  }

  static int64_t rows_of(const Tensor& tokens) {
    STD_TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) > 0, "eagle3ref_native: tokens are not [B, N]");
    return tokens.size(0);
  }

  DraftNodes first() const { return {read<int64_t>(tokens), read<int64_t>(parents), size}; }
};

struct TargetOnlyInputs {
  Tensor probs, uniforms, final_uniforms;
  double threshold_single, threshold_acc;
  int64_t vocab_size;
  bool inclusive, is_double;

  TargetOnlyInputs(const TreeInputs& trees, const Tensor& probs_in, const Tensor& uniforms_in,
                   const Tensor& final_uniforms_in, double single, double acc, bool inclusive_in)
      : threshold_single(single),
        threshold_acc(acc),
        vocab_size(last_size_of(probs_in)),
        inclusive(inclusive_in),
        is_double(probs_in.scalar_type() == ScalarType::Double) {
    const ScalarType type = is_double ? ScalarType::Double : ScalarType::Float;
    probs = checked(probs_in, "target_probs", type, {trees.batch, trees.size, vocab_size});
    uniforms = checked(uniforms_in, "uniforms", ScalarType::Double, {trees.batch, trees.size});
    final_uniforms = checked(final_uniforms_in, "final_uniforms", ScalarType::Double, {trees.batch});
  }

  static int64_t last_size_of(const Tensor& probs) {
    STD_TORCH_CHECK(probs.dim() == 3 && probs.size(2) > 0, "eagle3ref_native: target_probs are not [B, N, V]");
    return probs.size(2);
  }

  template <class Prob>
  TargetOnly<Prob> first() const {
    return {read<Prob>(probs),
            read<double>(uniforms),
            read<double>(final_uniforms),
            vocab_size,
            static_cast<Prob>(threshold_single),
            static_cast<Prob>(threshold_acc),
            inclusive};
  }
};

struct WalkInputs {
  Tensor ranks, starts, num_steps, num_draft_tokens;
  int64_t roots, steps, sequences, settings;

  WalkInputs(const Tensor& ranks_in, const Tensor& starts_in, const Tensor& steps_in, const Tensor& sizes_in) {
    STD_TORCH_CHECK(ranks_in.dim() == 3 && starts_in.dim() == 1 && starts_in.size(0) > 0 && steps_in.dim() == 1,
                    "eagle3ref_native: ranks are not [R, S, S], or starts not [B + 1], or num_steps not [Q]");
    roots = ranks_in.size(0);
    steps = ranks_in.size(1);
    sequences = starts_in.size(0) - 1;
    settings = steps_in.size(0);
    ranks = checked(ranks_in, "ranks", ScalarType::Short, {roots, steps, steps});
    starts = checked(starts_in, "starts", ScalarType::Long, {sequences + 1});
    num_steps = checked(steps_in, "num_steps", ScalarType::Long, {settings});
    num_draft_tokens = checked(sizes_in, "num_draft_tokens", ScalarType::Long, {settings});
  }

  Walks walks() const {
    return {read<int16_t>(ranks),     read<int64_t>(starts),           sequences, steps,
            read<int64_t>(num_steps), read<int64_t>(num_draft_tokens), settings};
  }
};

struct Int4Inputs {
  Tensor packed, scale;
  int64_t rows, groups;
  ScalarType type;

  Int4Inputs(const Tensor& packed_in, const Tensor& scale_in, int64_t words_per_group) : type(scale_in.scalar_type()) {
    STD_TORCH_CHECK(scale_in.dim() == 2, "eagle3ref_native: scale is not [out, in / 32]");
    STD_TORCH_CHECK(type == ScalarType::BFloat16 || type == ScalarType::Half || type == ScalarType::Float,
                    "eagle3ref_native: scale is not bf16, fp16 or fp32");
    rows = scale_in.size(0);
    groups = scale_in.size(1);
    packed = checked(packed_in, "packed", ScalarType::Int, {rows, groups * words_per_group});
    scale = checked(scale_in, "scale", type, {rows, groups});
  }
};

inline Tensor checked_words(const Tensor& packed) {
  STD_TORCH_CHECK(packed.dim() == 2, "eagle3ref_native: packed is not [out, in / 8]");
  return checked(packed, "packed", ScalarType::Int, {packed.size(0), packed.size(1)});
}

inline Tensor checked_lanes(const Tensor& num_accepted) {
  STD_TORCH_CHECK(num_accepted.dim() == 2, "eagle3ref_native: num_accepted are not [L, R]");
  return checked(num_accepted, "num_accepted", ScalarType::Long, {num_accepted.size(0), num_accepted.size(1)});
}

}  // namespace eagle3ref

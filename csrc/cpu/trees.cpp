// Tree building and verification on the CPU, a thread for each sequence.

#include <limits>
#include <type_traits>

#include "../inputs.h"
#include "../outputs.h"
#include "threads.h"

namespace eagle3ref {
namespace {

using Verification = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr OneThread kTeam;
constexpr int64_t kTreesAtLeast = 16;        // sequences worth a thread
constexpr int64_t kMassesAtLeast = 1 << 16;  // probabilities worth a thread

template <class Score>
void build_trees(const CandidateInputs& in, const TreeOutputs& out) {
  using Key = std::conditional_t<sizeof(Score) == 4, uint32_t, uint64_t>;
  const Candidates<Score> candidates = in.first<Score>();
  const int64_t *roots = read<int64_t>(in.root_tokens), *prefix_lengths = read<int64_t>(in.prefix_lengths);
  const Tree trees = out.first();
  bool* refused = write<bool>(out.refused);
  in_threads(in.batch, kTreesAtLeast, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    std::vector<Key> keys(in.size);
    std::vector<int32_t> node_of(in.size);
    for (int64_t i = begin; i < end; ++i) {
      refused[i] = build_tree(kTeam, candidates.of(i), roots[i], prefix_lengths[i], trees.of(i), keys.data(),
                              node_of.data());
    }
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> build_tree_op(
    Tensor scores, Tensor tokens, Tensor parents, Tensor root_tokens, Tensor prefix_lengths, int64_t num_draft_tokens) {
  const CandidateInputs in(scores, tokens, parents, root_tokens, prefix_lengths, num_draft_tokens);
  const TreeOutputs out(in.tokens, in.batch, num_draft_tokens);
  (in.is_double ? build_trees<double> : build_trees<float>)(in, out);
  return out.all();
}

Verification verify_greedy_op(Tensor tokens, Tensor parents, Tensor target_tokens) {
  const TreeInputs in(tokens, parents);
  target_tokens = checked(target_tokens, "target_tokens", ScalarType::Long, {in.batch, in.size});
  const VerificationOutputs out(in.tokens, in.batch, in.size);
  const DraftNodes trees = in.first();
  const Verified verified = out.first();
  const int64_t* targets = read<int64_t>(target_tokens);
  in_threads(in.batch, kTreesAtLeast, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    for (int64_t i = begin; i < end; ++i) {
      verify_greedy(kTeam, trees.of(i), targets + i * in.size, verified.of(i, in.size));
    }
  });
  return out.all();
}

// Whether each of the rows [rows, V] holds nothing but probabilities.
template <class Prob>
std::vector<char> are_probabilities(const Prob* probs, int64_t rows, int64_t vocab_size) {
  std::vector<char> rows_fit(rows);
  in_threads(rows, 1 + kMassesAtLeast / (vocab_size + 1),
             [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
               for (int64_t row = begin; row < end; ++row) {
                 const Prob* masses = probs + row * vocab_size;
                 Prob wrong = 0;
                 for (int64_t i = 0; i < vocab_size; ++i) {
                   const bool fits = masses[i] >= 0 && masses[i] <= std::numeric_limits<Prob>::max();
                   wrong = fits ? wrong : Prob{1};
                 }
                 rows_fit[row] = wrong == 0;
               }
             });
  return rows_fit;
}

template <class Prob>
void verify_target_only_of(const TreeInputs& in, const TargetOnlyInputs& given, const VerificationOutputs& out) {
  const int64_t size = in.size;
  const DraftNodes trees = in.first();
  const TargetOnly<Prob> target = given.first<Prob>();
  const Verified verified = out.first();
  const std::vector<char> rows_fit = are_probabilities(target.probs, in.batch * size, target.vocab_size);
  in_threads(in.batch, 1, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    std::vector<int64_t> removed(size);
    for (int64_t i = begin; i < end; ++i) {
      bool fit = true;
      for (int64_t row = i * size; row < (i + 1) * size; ++row) fit = fit && rows_fit[row];
      verify_target_only(kTeam, trees.of(i), target.of(i, size), fit, verified.of(i, size), removed.data());
    }
  });
}

Verification verify_target_only_op(Tensor tokens, Tensor parents, Tensor target_probs, Tensor uniforms,
                                   Tensor final_uniforms, double threshold_single, double threshold_acc,
                                   bool inclusive) {
  const TreeInputs in(tokens, parents);
  const TargetOnlyInputs target(in, target_probs, uniforms, final_uniforms, threshold_single, threshold_acc, inclusive);
  const VerificationOutputs out(in.tokens, in.batch, in.size);
  (target.is_double ? verify_target_only_of<double> : verify_target_only_of<float>)(in, target, out);
  return out.all();
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(eagle3ref_native, CPU, library) {
  library.impl("build_tree", TORCH_BOX(&build_tree_op));
  library.impl("verify_greedy", TORCH_BOX(&verify_greedy_op));
  library.impl("verify_target_only", TORCH_BOX(&verify_target_only_op));
}

}  // namespace eagle3ref

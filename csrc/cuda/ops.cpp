// The operators on CUDA tensors: arguments checked, outputs allocated, kernels launched on torch's current stream.

#include "../inputs.h"
#include "../int4.h"
#include "../outputs.h"
#include "../sources.h"
#include "kernels.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include <type_traits>

namespace eagle3ref {
namespace {

using torch::stable::accelerator::DeviceGuard;
using Verification = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Makes the tensors' device the current one, and knows its stream. The dispatcher comes here when any tensor is on a
// GPU; all must be.
class OnDevice {
 public:
  explicit OnDevice(std::initializer_list<Tensor> tensors)
      : index_(tensors.begin()->get_device_index()), guard_(index_) {
    for (const Tensor& tensor : tensors) {
      STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == index_,
                      "eagle3ref_native: tensors on different devices");
    }
  }

  cudaStream_t stream() const {
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return static_cast<cudaStream_t>(stream);
  }

 private:
  int32_t index_;
  DeviceGuard guard_;
};

template <class Score>
void build_trees(const CandidateInputs& in, const TreeOutputs& out, cudaStream_t stream) {
  using Key = std::conditional_t<sizeof(Score) == 4, uint32_t, uint64_t>;
  const Tensor keys = empty(in.tokens, {in.batch, in.size}, sizeof(Key) == 4 ? ScalarType::Int : ScalarType::Long);
  const Tensor node_of = empty(in.tokens, {in.batch, in.size}, ScalarType::Int);
  STD_CUDA_CHECK(cuda::build_trees(in.first<Score>(), read<int64_t>(in.root_tokens), read<int64_t>(in.prefix_lengths),
                                   out.first(), write<bool>(out.refused), write<Key>(keys), write<int32_t>(node_of),
                                   in.batch, stream));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> build_tree_op(
    Tensor scores, Tensor tokens, Tensor parents, Tensor root_tokens, Tensor prefix_lengths, int64_t num_draft_tokens) {
  const OnDevice device({scores, tokens, parents, root_tokens, prefix_lengths});
  const CandidateInputs in(scores, tokens, parents, root_tokens, prefix_lengths, num_draft_tokens);
  const TreeOutputs out(in.tokens, in.batch, num_draft_tokens);
  if (in.batch > 0) (in.is_double ? build_trees<double> : build_trees<float>)(in, out, device.stream());
  return out.all();
}

Verification verify_greedy_op(Tensor tokens, Tensor parents, Tensor target_tokens) {
  const OnDevice device({tokens, parents, target_tokens});
  const TreeInputs trees(tokens, parents);
  target_tokens = checked(target_tokens, "target_tokens", ScalarType::Long, {trees.batch, trees.size});
  const VerificationOutputs out(trees.tokens, trees.batch, trees.size);
  if (trees.batch > 0) {
    STD_CUDA_CHECK(cuda::verify_greedy(trees.first(), read<int64_t>(target_tokens), out.first(), trees.batch,
                                       device.stream()));
  }
  return out.all();
}

template <class Prob>
void verify_target_only(const TreeInputs& trees, const TargetOnlyInputs& target, const VerificationOutputs& out,
                        cudaStream_t stream) {
  const Tensor removed = empty(trees.tokens, {trees.batch, trees.size}, ScalarType::Long);
  STD_CUDA_CHECK(cuda::verify_target_only(trees.first(), target.first<Prob>(), out.first(), write<int64_t>(removed),
                                          trees.batch, stream));
}

Verification verify_target_only_op(Tensor tokens, Tensor parents, Tensor target_probs, Tensor uniforms,
                                   Tensor final_uniforms, double threshold_single, double threshold_acc,
                                   bool inclusive) {
  const OnDevice device({tokens, parents, target_probs, uniforms, final_uniforms});
  const TreeInputs trees(tokens, parents);
  const TargetOnlyInputs target(trees, target_probs, uniforms, final_uniforms, threshold_single, threshold_acc,
                                inclusive);
  const VerificationOutputs out(trees.tokens, trees.batch, trees.size);
  if (trees.batch > 0) {
    (target.is_double ? verify_target_only<double> : verify_target_only<float>)(trees, target, out, device.stream());
  }
  return out.all();
}

Tensor visited_positions_op(Tensor num_accepted) {
  const OnDevice device({num_accepted});
  num_accepted = checked_lanes(num_accepted);
  const int64_t lanes = num_accepted.size(0), roots = num_accepted.size(1);
  const Tensor out = empty(num_accepted, {lanes, roots}, ScalarType::Bool);
  if (lanes > 0) {
    STD_CUDA_CHECK(cuda::visited_positions(read<int64_t>(num_accepted), lanes, roots, write<bool>(out),
                                           device.stream()));
  }
  return out;
}

std::tuple<Tensor, Tensor> tally_settings_op(Tensor ranks, Tensor starts, Tensor num_steps, Tensor num_draft_tokens) {
  const OnDevice device({ranks, starts, num_steps, num_draft_tokens});
  const WalkInputs in(ranks, starts, num_steps, num_draft_tokens);
  const Tensor histogram = empty(in.ranks, {in.settings, in.sequences, in.steps + 1}, ScalarType::Long);
  const Tensor censored = empty(in.ranks, {in.settings, in.sequences}, ScalarType::Long);
  if (in.settings * in.sequences > 0) {
    STD_CUDA_CHECK(cuda::tally_settings(in.walks(), write<int64_t>(histogram), write<int64_t>(censored),
                                        device.stream()));
  }
  return {histogram, censored};
}

Tensor unpack_int4_op(Tensor packed) {
  const OnDevice device({packed});
  packed = checked_words(packed);
  const Tensor out = empty(packed, {packed.size(0), packed.size(1) * kPerWord}, ScalarType::Char);
  if (packed.numel() > 0) {
    STD_CUDA_CHECK(cuda::unpack_int4(read<int32_t>(packed), packed.numel(), write<int8_t>(out), device.stream()));
  }
  return out;
}

Tensor dequantize_int4_op(Tensor packed, Tensor scale) {
  const OnDevice device({packed, scale});
  const Int4Inputs in(packed, scale, kGroupSize / kPerWord);
  const Tensor out = empty(in.scale, {in.rows, in.groups * kGroupSize}, in.type);
  const auto type = in.type == ScalarType::BFloat16 ? cuda::Weight::bf16
                    : in.type == ScalarType::Half   ? cuda::Weight::fp16
                                                    : cuda::Weight::fp32;
  if (in.packed.numel() > 0) {
    STD_CUDA_CHECK(cuda::dequantize_int4(read<int32_t>(in.packed), in.scale.const_data_ptr(), type, in.packed.numel(),
                                         out.mutable_data_ptr(), device.stream()));
  }
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(eagle3ref_native, CUDA, library) {
  library.impl("build_tree", TORCH_BOX(&build_tree_op));
  library.impl("verify_greedy", TORCH_BOX(&verify_greedy_op));
  library.impl("verify_target_only", TORCH_BOX(&verify_target_only_op));
  library.impl("visited_positions", TORCH_BOX(&visited_positions_op));
  library.impl("tally_settings", TORCH_BOX(&tally_settings_op));
  library.impl("unpack_int4", TORCH_BOX(&unpack_int4_op));
  library.impl("dequantize_int4", TORCH_BOX(&dequantize_int4_op));
}

}  // namespace eagle3ref

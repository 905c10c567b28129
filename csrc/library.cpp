// The operators. Python (src/eagle3ref/kernels/native.py) is their public face and says what they mean.

#include <torch/csrc/stable/library.h>

#include "sources.h"

STABLE_TORCH_LIBRARY(eagle3ref_native, library) {
  library.def(
      "build_tree(Tensor scores, Tensor tokens, Tensor parents, Tensor root_tokens, Tensor prefix_lengths, "
      "int num_draft_tokens) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "verify_greedy(Tensor tokens, Tensor parents, Tensor target_tokens) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "verify_target_only(Tensor tokens, Tensor parents, Tensor target_probs, Tensor uniforms, "
      "Tensor final_uniforms, float threshold_single, float threshold_acc, bool inclusive) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("visited_positions(Tensor num_accepted) -> Tensor");
  library.def(
      "tally_settings(Tensor ranks, Tensor starts, Tensor num_steps, Tensor num_draft_tokens) -> (Tensor, Tensor)");
  library.def("unpack_int4(Tensor packed) -> Tensor");
  library.def("dequantize_int4(Tensor packed, Tensor scale) -> Tensor");
}

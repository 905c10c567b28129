"""Tree building and greedy verification: SGLang's Triton kernels."""

from typing import Any

from torch import Tensor

from .rounds import record


def build_tree_kernel_efficient_cpu(*arguments: Any) -> None:
    """Links, positions and mask of the tree, written into the tensors that were given."""
    from sglang.kernels.ops.speculative.spec_tree import sgl_build_tree_kernel_triton

    sgl_build_tree_kernel_triton(*arguments)


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """The greedy walk. ``accept_token_num`` counts drafts only; SGLang spells "retrieve" in two ways."""
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    links = retrive_index, retrive_next_token, retrive_next_sibling
    verify_tree_greedy_triton(predicts, accept_index, accept_token_num, candidates, *links, target_predict)
    record(accept_token_num, candidates, retrive_next_token, retrive_next_sibling)

"""Lets SGLang take, on a CPU, branches that it keeps for GPUs; the scripts that start it ask for it in each process."""

import os

TARGET_ONLY = "EAGLE3REF_TARGET_ONLY"  # set: above temperature 0, verify by target-only sampling
FULL_MASK = "EAGLE3REF_FULL_MASK"  # set: tree masks in the form that its Triton attention reads
OVERLAP = "EAGLE3REF_OVERLAP"  # set: launch the next round before the last one's tokens are looked at


def take() -> None:
    """Replace what is asked for, before SGLang's workers import it by name.

    On a CPU SGLang 0.5.23 verifies greedily whatever the temperature (``_verify_uses_greedy``), and makes tree masks
    without the prefix (``default_tree_mask_mode``), which its Triton attention would read wrongly. It overlaps rounds
    on a CPU too, but not those of a draft (``_disable_overlap_schedule_for_cpu``).
    """
    if not {TARGET_ONLY, FULL_MASK, OVERLAP} & os.environ.keys():
        return
    from sgl_kernel import target_only
    from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.speculative import eagle_utils

    if TARGET_ONLY in os.environ:
        eagle_utils._verify_uses_greedy = lambda *, is_all_greedy, **_others: is_all_greedy
        eagle_utils.tree_speculative_sampling_target_only = target_only.sample
    if FULL_MASK in os.environ:
        eagle_utils.default_tree_mask_mode = lambda: TreeMaskMode.FULL_MASK
    if OVERLAP in os.environ:
        speculative_hook._disable_overlap_schedule_for_cpu = lambda _server_args: None

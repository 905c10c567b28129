"""Traps in verification: rules that need what this draft has not, thresholds that change the text."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_HOOK = "srt/arg_groups/speculative_hook.py"


def rejection_sampling(wiring: Wiring) -> Iterator[Trap]:
    """SGLang's opt-in rule, which wants a chain, thresholds of 1 and the target's whole vocabulary."""
    case = wiring.case
    flags = case.flags
    if case.profile.engine != "SGLang" or not (flags.rejection_sampling or flags.block_verification):
        return
    config, tree = case.draft.config, wiring.tree.tree
    thresholds = (flags.threshold_single, flags.threshold_acc)
    name = (
        "--speculative-use-rejection-sampling" if flags.rejection_sampling else "--speculative-use-block-verification"
    )
    reasons = {
        f"topk {tree.topk if tree else ''}: only chains": tree is not None and tree.topk != 1,
        "accept thresholds other than 1": any(threshold not in (None, 1.0) for threshold in thresholds),
        f"a draft vocabulary of {config.draft_vocab_size} of {config.vocab_size}: draft and target must share one": (
            case.draft.ending("d2t") is not None and config.draft_vocab_size != config.vocab_size
        ),
    }
    for reason in (text for text, applies in reasons.items() if applies):
        yield Trap(
            "rejection-refused",
            "fails at start",
            f"{name} with {reason}",
            "ValueError" + (", after the models are loaded" if "vocabulary" in reason else ""),
            f"Leave {name} out; the default rule, target-only sampling, takes any draft.",
            read_in("SGLang", _HOOK if "vocabulary" not in reason else "srt/speculative/eagle_worker_v2.py"),
        )


def low_thresholds(wiring: Wiring) -> Iterator[Trap]:
    """Thresholds that accept what the target would not have drawn."""
    case = wiring.case
    flags = case.flags
    low = {
        "--speculative-accept-threshold-single": flags.threshold_single,
        "--speculative-accept-threshold-acc": flags.threshold_acc,
    }
    named = [f"{name} {value}" for name, value in low.items() if value is not None and value < 1]
    if named:
        yield Trap(
            "low-thresholds",
            "silent, changes the text",
            " and ".join(named),
            "a longer accept len at temperature > 0, and text that is not distributed as the target's",
            "Leave them at 1; to compare acceptance, always.",
            read_in("SGLang", "kernels/jit/include/sgl_kernel/speculative/sampling.cuh"),
        )

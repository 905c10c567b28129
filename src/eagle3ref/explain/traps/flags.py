"""Traps in the flags: another algorithm, a flag that the engine does not know, counts that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.config.tree import num_candidates
from eagle3ref.explain.case import Case
from eagle3ref.explain.trap import Severity, Trap, read_in
from eagle3ref.explain.wiring import Wiring

_HOOK = "srt/arg_groups/speculative_hook.py"
_EAGLE_1 = ("EAGLE", "NEXTN")  # an alias on SGLang
# SGLang 0.5.23, srt/speculative/spec_info.py; plugins may add others.
_SGLANG_ALGORITHMS = (*_EAGLE_1, "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "NONE")


def misspelled_flags(wiring: Wiring) -> Iterator[Trap]:
    """A flag that looks like a known one, a short form of several, or a speculative one that the engine has not."""
    case = wiring.case
    for flag in case.flags.misspelled:
        refused = "ValidationError: unexpected keyword" if " " in flag.typed else "error: unrecognized arguments"
        yield Trap(
            "unknown-flag",
            "fails at start",
            f"{flag.typed} is no flag of {case.profile.engine}",
            "error: ambiguous option" if len(flag.meant) > 1 else refused,
            f"Write {' or '.join(flag.meant)}." if flag.meant else "Leave it out, or use the engine that has it.",
            read_in(case.profile.engine, "its argument parser"),
        )


def wrong_algorithm(wiring: Wiring) -> Iterator[Trap]:
    """The flag that turns on capture has another value: on SGLang the most expensive word of all."""
    case = wiring.case
    if wiring.is_eagle3:
        return
    guessed = "" if case.flags.algorithm else f" (guessed from the path {case.flags.draft_path})"
    severity, seen = _without_capture(wiring)
    yield Trap(
        "wrong-algorithm",
        severity,
        f"{wiring.algorithm!r}{guessed} is not EAGLE-3, and this draft is",
        seen,
        f"Write {case.profile.capture_setting}.",
        case.source("without_capture"),
    )


def _without_capture(wiring: Wiring) -> tuple[Severity, str]:
    """What becomes of the draft under another algorithm, and how it shows."""
    case, algorithm = wiring.case, wiring.algorithm
    config = case.draft.config
    if case.profile.engine == "SGLang" and algorithm.upper() not in _SGLANG_ALGORITHMS:
        return "fails at start", f"ValueError: Unknown speculative algorithm name: {algorithm}"
    if case.profile.engine == "vLLM" and algorithm == "eagle" and not config.architecture.startswith("Eagle"):
        return "fails at start", f"ValueError: the architecture Eagle{config.architecture} is not supported"
    if not case.profile.fc_skipped_on_equal_width or algorithm.upper() not in _EAGLE_1:
        return "silent, costs acceptance", "the draft does not run as an EAGLE-3 draft"
    fused = config.num_aux_hidden_states * config.target_hidden_size
    if config.hidden_size == config.target_hidden_size:
        return "silent, costs acceptance", (
            f"no error, no warning, accept len 1.0 to 1.1: the target hands over {config.target_hidden_size} wide "
            f"states, fc ({fused} -> {config.hidden_size}) is skipped, head and d2t are not the draft's"
        )
    return "fails at first forward", (
        f"fc takes {fused}, but the states are {config.target_hidden_size} wide: a shape error"
    )


def speculation_off(wiring: Wiring) -> Iterator[Trap]:
    """Speculative settings without the one that turns speculation on."""
    case = wiring.case
    flags = case.flags
    settings = (flags.draft_path, flags.num_steps, flags.topk, flags.num_draft_tokens)
    if case.profile.engine != "SGLang" or flags.algorithm is not None or settings == (None,) * 4:
        return
    yield Trap(
        "speculation-off",
        "silent, costs acceptance",
        "speculative settings, but no --speculative-algorithm",
        "the server runs without the draft; its log has no accept len",
        f"Add {case.profile.capture_setting}.",
        read_in(case.profile.engine, _HOOK),
    )


def impossible_tree(wiring: Wiring) -> Iterator[Trap]:
    """Counts that no server runs with."""
    case = wiring.case
    tree = wiring.tree
    if not tree.problem:
        return
    source = read_in(case.profile.engine, _HOOK if not tree.starts else "srt/speculative/eagle_utils.py")
    if tree.starts:
        seen = "the server starts; torch.topk fails at the first draft: selected index k out of range"
        yield Trap(
            "too-many-draft-tokens", "fails at first forward", tree.problem, seen, _more_candidates(case), source
        )
    else:
        fix = "Give all of --speculative-num-steps, --speculative-eagle-topk, --speculative-num-draft-tokens, or none."
        yield Trap("incomplete-tree", "fails at start", f"{tree.asked}: {tree.problem}", tree.problem, fix, source)


def adjusted_chain(wiring: Wiring) -> Iterator[Trap]:
    """A chain of another width than asked for."""
    case = wiring.case
    asked, tree = case.flags.num_draft_tokens, wiring.tree.tree
    if asked is None or tree is None or asked == tree.num_draft_tokens:
        return
    yield Trap(
        "adjusted-chain",
        "harmless",
        f"{wiring.tree.asked} runs as {tree}: num_draft_tokens counts the root, and topk 1 is a chain",
        "a warning at start; rates computed with the flag's number are wrong",
        f"Write --speculative-num-draft-tokens {tree.num_draft_tokens}, or --speculative-num-steps {asked - 1}.",
        case.source("forces_chain_width"),
    )


def adaptive_steps(wiring: Wiring) -> Iterator[Trap]:
    """A number of steps that changes while the server runs."""
    case = wiring.case
    if case.flags.adaptive:
        yield Trap(
            "adaptive",
            "harmless",
            "--speculative-adaptive changes num_steps with the load",
            "lengths and rates are of a mixture, and comparable to no fixed setting",
            "Leave it out while you measure.",
            read_in("SGLang", "srt/speculative/adaptive_spec_params.py"),
        )


def ignored_token_map(wiring: Wiring) -> Iterator[Trap]:
    """A reduced vocabulary that an EAGLE-3 draft brings itself."""
    case = wiring.case
    if case.flags.token_map is not None and wiring.captures:
        yield Trap(
            "token-map",
            "harmless",
            "--speculative-token-map is for EAGLE-1 and 2 drafts",
            "a warning; the draft's own d2t is used",
            "Leave it out.",
            read_in("SGLang", "srt/speculative/eagle_worker_v2.py"),
        )


def _more_candidates(case: Case) -> str:
    flags = case.flags
    most = num_candidates(flags.num_steps or 1, flags.topk or 1) + 1
    return f"Write --speculative-num-draft-tokens {most} or less, or raise topk or num_steps."

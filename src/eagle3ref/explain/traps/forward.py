"""Traps in the draft's forward: config keys that are ignored or misread, a rope that ends too early."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.config.draft import EXPORTED_POINTS_KEY
from eagle3ref.explain.case import Case
from eagle3ref.explain.engine_config import reads_residual_as_normed
from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_SGLANG_LLAMA = "srt/models/llama_eagle3.py"


def ignored_keys(wiring: Wiring) -> Iterator[Trap]:
    """A setting of the network that this engine's class does not read."""
    case = wiring.case
    for key in wiring.ignored_keys:
        yield Trap(
            "ignored-key",
            "harmless" if key == "logit_scale" else "silent, costs acceptance",
            f"{key} is set in config.json, and {case.profile.engine}'s class for this draft does not read it",
            "no error; "
            + (
                "greedy drafts do not depend on it" if key == "logit_scale" else "another network runs than was trained"
            ),
            "Serve this draft with an engine that reads the key, or train it without.",
            case.source("ignored_keys"),
        )


def missing_key_read_as_true(wiring: Wiring) -> Iterator[Trap]:
    """A key whose absence vLLM and everybody else read in opposite ways."""
    case = wiring.case
    if reads_residual_as_normed(case.draft, case.profile):
        yield Trap(
            "missing-key",
            "silent, costs acceptance",
            "norm_before_residual is not in this speculators file, and vLLM takes that for true",
            "no error; a draft that was trained without it runs with a normed residual, and accepts far less",
            "Add norm_before_residual to config.json, false if the draft was trained so.",
            read_in("vLLM", "transformers_utils/configs/speculators/algos.py"),
        )


def key_that_crashes(wiring: Wiring) -> Iterator[Trap]:
    """Keys that vLLM, and SGLang's Llama class, take without looking whether they are there, or null."""
    case = wiring.case
    engine, kind, keys = case.profile.engine, case.draft.attention_kind, case.draft.keys
    if engine not in ("SGLang", "vLLM") or (engine, kind) == ("SGLang", "mla"):
        return
    source = read_in(engine, _SGLANG_LLAMA if engine == "SGLang" else "model_executor/models")
    if "target_hidden_size" in keys and keys["target_hidden_size"] is None:
        yield Trap(
            "null-target-hidden-size",
            "fails at start",
            "target_hidden_size is null",
            "TypeError: None times a number; only its absence means the draft's own width",
            "Remove the key from config.json.",
            source,
        )
    is_absent = "draft_vocab_size" not in keys and case.draft.unsaid_vocabulary is None
    if engine == "SGLang" and is_absent and not case.draft.config.tie_word_embeddings:
        yield Trap(
            "no-draft-vocab-size",
            "fails at start",
            "config.json has no draft_vocab_size",
            "AttributeError: the config has no attribute draft_vocab_size",
            f"Add draft_vocab_size: {case.draft.config.vocab_size}, or null for the target's head.",
            source,
        )


def ambiguous_norm_output(wiring: Wiring) -> Iterator[Trap]:
    """One key, two meanings: EAGLE-3.1's recurrent state, and SpecForge's norm before the head."""
    case = wiring.case
    config = case.draft.config
    if not case.draft.keys.get("norm_output") or "norm_output" in wiring.ignored_keys:
        return
    if config.final_norm == "head+state" and config.family != "SpecForge":
        return
    if config.capture_ids_key == EXPORTED_POINTS_KEY:  # an export of this package, which was settled before
        return
    yield Trap(
        "norm-output",
        "silent, costs acceptance",
        "norm_output is true in a SpecForge export, where it only says that the head reads the normed state",
        "no error; the state after the final norm is fed back, as in EAGLE-3.1; positions after the first suffer",
        "Remove norm_output from config.json; eagle3ref replay --final-norm head and head+state shows which is right.",
        case.source("honoured_keys"),
    )


def skipped_fc(wiring: Wiring) -> Iterator[Trap]:
    """An fc whose input is as wide as the embedding, on an engine that decides by widths."""
    case = wiring.case
    config = case.draft.config
    width = config.num_aux_hidden_states * config.target_hidden_size
    if case.profile.fc_skipped_on_equal_width and width == config.hidden_size and wiring.captures:
        yield Trap(
            "skipped-fc",
            "silent, costs acceptance",
            f"fc takes {width} and gives {config.hidden_size}: equal widths",
            "no error; fc and the norms before it are skipped, accept len about 1",
            "Train the draft with another width, or more capture points.",
            case.source("fc_skipped_on_equal_width"),
        )


def short_context(wiring: Wiring) -> Iterator[Trap]:
    """A draft whose positions end before the target's do, on an engine that gives it the target's context."""
    case = wiring.case
    reach, target = _reach(case), case.target
    context = case.flags.context_length or target.max_position_embeddings
    if case.profile.engine != "SGLang" or not reach < context < 2**31 - 1:  # the latter: its config.json does not say
        return
    who = "--context-length" if case.flags.context_length else "the target's own context"
    yield Trap(
        "short-context",
        "fails at start",
        f"the draft's max_position_embeddings gives it {reach:,} positions, and {who} is {context:,}",
        f"it {case.profile.short_rope}",
        f"Add --context-length {reach}, or raise max_position_embeddings in the draft's config.json to {context}: then "
        "look at long prompts on their own, acceptance falls past the length of training.",
        case.source("short_rope"),
    )


def short_rope(wiring: Wiring) -> Iterator[Trap]:
    """Prompts that are longer than the draft's range of positions."""
    case = wiring.case
    reach = _reach(case)
    lengths = {"--prompt-length": case.prompt_length}
    if case.profile.engine != "SGLang":  # there, a context that is too long does not come this far
        lengths["the server's context"] = case.flags.context_length
    for who, length in lengths.items():
        if length is None or length <= reach:
            continue
        yield Trap(
            "short-rope",
            "silent, costs acceptance",
            f"{who} is {length:,} tokens, and the draft's max_position_embeddings gives it {reach:,} positions",
            f"{case.profile.short_rope or 'a table may be read past its end'}; past {reach:,} tokens fewer drafts are "
            "accepted",
            "Use a draft that was trained on sequences of that length, or look at long prompts on their own.",
            case.source("short_rope"),
        )


def _reach(case: Case) -> int:
    """Positions of the draft as engines count them: a plain factor stretches them, one with an original length not."""
    config = case.draft.config
    rope = config.attention.rope
    factor = rope.factor if rope.type in ("linear", "dynamic") else 1
    return int(config.max_position_embeddings * factor)


def ignored_window(wiring: Wiring) -> Iterator[Trap]:
    """A window for the draft's attention that its class does not have, or that it was not trained with."""
    case = wiring.case
    window = case.flags.draft_window
    if window is None or case.profile.engine != "SGLang":
        return
    is_mla = case.draft.attention_kind == "mla"
    yield Trap(
        "draft-window",
        "harmless" if is_mla else "silent, costs acceptance",
        f"--speculative-draft-window-size {window}"
        + (" is ignored by MLA drafts" if is_mla else " limits what the draft sees"),
        "no error" + ("" if is_mla else "; a draft that was trained on all tokens accepts less on long prompts"),
        "Leave it out" + ("." if is_mla else ", unless the draft was trained with a window of that size."),
        read_in("SGLang", _SGLANG_LLAMA if not is_mla else "srt/arg_groups/fields/spec.py"),
    )

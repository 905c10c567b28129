"""The wiring in sentences, each with the source that says so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle3ref.config import RULE_MEANING
from eagle3ref.engines.profile import Source
from eagle3ref.explain.case import Case
from eagle3ref.explain.wiring import Wiring

_HEADS = {
    "draft": "the draft's own",
    "target": "the target's",
    "embedding": "the embedding that is used, the target's",
    "random": "nobody's: the file has none, and its memory stays uninitialised",
    "refused": "missing, and the engine refuses that",
}


@dataclass(frozen=True)
class Statement:
    """One thing that the engine does.

    Args:
        topic: e.g. ``"tree"``.
        text: what it does, in words.
        source: who says so; None for what the files or the user say.
    """

    topic: str
    text: str
    source: Source | None


def statements(wiring: Wiring) -> tuple[Statement, ...]:
    """What runs, in the order in which a round needs it."""
    case = wiring.case
    facts = [
        ("algorithm", _algorithm(wiring), "capture_setting" if wiring.captures else "without_capture"),
        ("tree", _tree(wiring), "forces_chain_width" if case.flags.num_steps else "default_trees"),
        ("captured states", _captured(wiring), "id_rules"),
        ("trained on", _trained(wiring), None),
        ("embedding", _embedding(wiring), "embedding"),
        ("lm_head", _HEADS[wiring.lm_head], "lm_head" if wiring.lm_head != "random" else "missing_lm_head"),
        ("draft vocabulary", _vocabulary(case), None),
        ("config keys", _keys(wiring), "ignored_keys" if wiring.ignored_keys else "honoured_keys"),
        ("tensors", _tensors(wiring), "unknown_tensors"),
        ("weights", "names and shapes only; eagle3ref inspect reads the values", None),
        ("temperature 0", f"greedy: {RULE_MEANING['greedy']}", None),
        ("temperature > 0", _sampled(wiring), "sampled_options" if case.sampled_options else "sampled_rule"),
        ("log", _log(case), "accept_rate"),
        ("per request", _request(case), "prefill_in_request_length"),
        ("remarks", " ".join(case.profile.remarks), "remarks"),
    ]
    if wiring.tree.tree is not None and wiring.tree.tree.topk > 1:
        facts.insert(2, ("branches read", _tree_kv(wiring), "tree_kv"))
    return tuple(Statement(topic, text, case.source(key) if key else None) for topic, text, key in facts if text)


def _algorithm(wiring: Wiring) -> str:
    case = wiring.case
    if wiring.captures:
        is_said = case.flags.algorithm or (case.profile.engine == "vLLM" and case.flags.draft_path)
        typed = "" if is_said else f", assumed; a server needs {case.profile.capture_setting}"
        return f"{wiring.algorithm}{typed}: the target hands over its aux hidden states"
    return f"{wiring.algorithm}: the target hands over no aux hidden states"


def _tree(wiring: Wiring) -> str:
    if wiring.tree.tree is None:
        return f"none: {wiring.tree.problem or wiring.tree.how}"
    return f"{wiring.tree.tree} (num_steps/topk/num_draft_tokens), {wiring.tree.how}"


def _tree_kv(wiring: Wiring) -> str:
    by_slot = wiring.tree.tree is not None and wiring.tree.tree.tree_kv == "slot"
    return "the rows of their own slot, whoever the parent was" if by_slot else "the rows of their ancestors"


def _captured(wiring: Wiring) -> str:
    if not wiring.captures:
        return "none; the draft gets the target's final state"
    failure = wiring.captured.failure
    return wiring.captured.note + (f"; {failure}" if failure else "")


def _trained(wiring: Wiring) -> str:
    if wiring.trained is None:
        return f"unknown: {wiring.trained_how}"
    same = "the same" if wiring.captures and wiring.trained == wiring.captured.points else "which it does not get"
    return f"inputs of layers {', '.join(map(str, wiring.trained))}, {same}; {wiring.trained_how}"


def _embedding(wiring: Wiring) -> str:
    return "the target's" if wiring.embedding == "target" else "the draft's own"


def _vocabulary(case: Case) -> str:
    config = case.draft.config
    if config.draft_vocab_size == config.vocab_size:
        return f"all {config.vocab_size:,} tokens of the target"
    return f"{config.draft_vocab_size:,} of the target's {config.vocab_size:,} tokens; others can never be drafted"


def _keys(wiring: Wiring) -> str:
    case = wiring.case
    honoured = [
        key
        for key in case.profile.honoured_keys.get(case.draft.attention_kind, ())
        if case.draft.keys.get(key) not in (None, False) and isinstance(case.draft.keys[key], bool)
    ]
    said = [f"honoured: {', '.join(honoured)}"] if honoured else []
    said += [f"ignored: {', '.join(wiring.ignored_keys)}"] if wiring.ignored_keys else []
    return "; ".join(said) or "none that this engine would ignore"


def _tensors(wiring: Wiring) -> str:
    case = wiring.case
    unknown, missing = len(wiring.tensors.unknown), len(wiring.tensors.missing)
    handling = case.profile.unknown_tensors.get(case.draft.attention_kind, "of unknown fate")
    said = f"{len(case.draft.shapes) - unknown} of {len(case.draft.shapes)} are read"
    said += f"; {unknown} with other names are {handling}" if unknown else ""
    return said + (f"; {missing} are missing" if missing else "")


def _sampled(wiring: Wiring) -> str:
    rule = wiring.rule
    if rule is None:
        return "not established"
    chosen = "; drafts are sampled" if rule.drafts == "sampled" else ""
    return f"{rule.name}: {RULE_MEANING[rule.name]}{chosen}"


def _log(case: Case) -> str:
    profile = case.profile
    if profile.log_format is None:
        return "no acceptance figures"
    line = re.sub(r"\{\w+[^}]*\}", "…", profile.log_format)
    meaning = f"; the rate is {profile.accept_rate_meaning}" if profile.accept_rate_meaning else ""
    return f"{line}{meaning}; every {profile.log_interval}"


def _request(case: Case) -> str:
    counted = {True: "counts", False: "does not count", None: "may count"}[case.profile.prefill_in_request_length]
    cut = {True: "leaves out", False: "keeps", None: "may leave out"}[case.profile.cuts_last_round_in_request]
    name = case.profile.request_fields.get("length")
    return f"{name} {counted} the prefill's token, and {cut} what runs past the end" if name else ""

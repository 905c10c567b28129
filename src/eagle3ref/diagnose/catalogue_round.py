"""Faults of a round: positions and rows of the draft loop, tree settings, the acceptance rule, the engine's reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.config.tree import num_candidates
from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.hypothesis import Cause, Hypothesis, LeftOut
from eagle3ref.diagnose.wiring import Wiring
from eagle3ref.draft import DraftLoop

_ONE_STEP = "With num_steps 1 there is no draft loop."


def round_faults(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    """All of them."""
    yield from _loop(bench)
    yield from _tree_rows(bench)
    yield from _tree_settings(bench)
    yield from _rules(bench)
    yield from _reading(bench)


def _loop(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    cause: Cause = "rope_position"
    fix = "An error of the engine or its backend: update it, or try another attention backend for the draft."
    later = "right at the first position, lower at the later ones"
    kinds = (
        ("loop-position-plus-1", "One position too high", DraftLoop(1, 1)),
        ("loop-position-minus-1", "One position too low", DraftLoop(-1, 1)),
        ("loop-not-advanced", "Always at the position of the first pass", DraftLoop(0, 0)),
        ("loop-rows-unseen", "Without sight of its own earlier passes", DraftLoop(sees_own=False)),
    )
    for name, how, loop in kinds:
        if bench.tree.num_steps == 1:
            yield LeftOut(name, cause, _ONE_STEP)
        elif loop.offset == 0 and bench.tree.num_steps == 2:
            yield LeftOut(name, cause, "With num_steps 2 the draft loop has one pass, and nothing to advance.")
        else:
            does = f"{how} runs the draft loop behind the committed rows."
            yield Hypothesis(name, cause, does, fix, later, Wiring(loop=loop))
    reason = "Rope knows only distances: all positions moved by the same number is the right wiring."
    yield LeftOut("all-positions-moved", cause, reason)


def _tree_rows(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    name = "own-rows-kept"
    if bench.tree.num_steps == 1:
        yield LeftOut(name, "draft_kv_state", _ONE_STEP)
    elif bench.tree.topk > 1 or bench.rule.drafts == "sampled":
        reason = "It is replayed for chains of top drafts only; engines that have had it draft nothing else."
        yield LeftOut(name, "draft_kv_state", reason, "Measure server and reference with topk 1.")
    else:
        does = "Rows of accepted drafts stay as the draft made them from its own states; they are not rebuilt from "
        does += "the target's."
        fix = "Update the engine (vLLM #14649); measure with num_steps 1, where the fault cannot show."
        looks = "8 to 15 per cent below, at every position"
        yield Hypothesis(name, "draft_kv_state", does, fix, looks, Wiring(keeps_own_rows=True))
    name = "tree-rows"
    if bench.tree.topk == 1 or bench.tree.num_steps < 3:
        yield LeftOut(name, "tree_topk_page", "A row of the draft loop has no rows of other branches before it here.")
        return
    other = "ancestor" if bench.tree.tree_kv == "slot" else "slot"
    meaning = {"slot": "the rows of its own slot, whoever the parent was", "ancestor": "the rows of its true ancestors"}
    does = f"A branch of the draft loop sees {meaning[other]}, instead of {meaning[bench.tree.tree_kv]}."
    tree = replace(bench.tree, tree_kv="ancestor" if other == "ancestor" else "slot")
    fix = "Both exist: SGLang 0.5.23 has slots. Say which the server has (tree_kv), or compare with topk 1."
    yield Hypothesis(
        f"{name}-{other}",
        "tree_topk_page",
        does,
        fix,
        "slightly off at the third position and later",
        Wiring(tree=tree),
    )


def _tree_settings(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    tree = bench.tree
    fix = "Compare the server's flags with the tree given here: num_draft_tokens counts the root, vLLM's tokens do not."
    for name, steps, nodes in (
        ("one-step-fewer", -1, -1 if tree.topk == 1 else 0),
        ("one-step-more", 1, 1 if tree.topk == 1 else 0),
        ("one-draft-token-fewer", 0, -1),
        ("one-draft-token-more", 0, 1),
    ):
        if tree.topk == 1 and steps == 0:
            yield LeftOut(name, "tree_settings", "In a chain the number of draft tokens is that of the steps, plus 1.")
            continue
        other = _resized(tree, tree.num_steps + steps, tree.num_draft_tokens + nodes)
        if other is None or not _has_longer_answers(bench, other):
            yield LeftOut(name, "tree_settings", "There is no such tree, or no answer is longer than it is deep.")
            continue
        does = f"It runs the tree {other} (steps / topk / draft tokens) instead of {tree}."
        looks = "right at the positions that both trees have"
        yield Hypothesis(name, "tree_settings", does, fix, looks, Wiring(tree=other))


def _resized(tree: TreeConfig, num_steps: int, num_draft_tokens: int) -> TreeConfig | None:
    if num_steps < 1 or num_draft_tokens < 2 or num_draft_tokens > num_candidates(num_steps, tree.topk) + 1:
        return None
    return replace(tree, num_steps=num_steps, num_draft_tokens=num_draft_tokens)


def _has_longer_answers(bench: Bench, tree: TreeConfig) -> bool:
    return any(entry.num_tokens - entry.prompt_length > tree.num_steps for entry in bench.trace.entries)


def _rules(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    fix = "Choose the same acceptance rule on the server and here; `eagle3ref explain` names the server's flag."
    looks = "right at temperature 0, off above"
    kinds = {
        "rule-exact-match": (AcceptanceRule("target_only"), "draws from the target and keeps drafts that match"),
        "rule-one-hot": (AcceptanceRule("rejection"), "keeps a top draft with the target's probability of it"),
        "rule-rejection": (
            AcceptanceRule("rejection", "sampled"),
            "samples drafts and keeps them by rejection sampling",
        ),
        "rule-block": (AcceptanceRule("block", "sampled"), "samples drafts and verifies them as a block"),
    }
    for name, (rule, does) in kinds.items():
        if bench.is_greedy:
            yield LeftOut(name, "sampling_rejection", "At temperature 0 every rule is the greedy one.")
        elif rule == bench.rule:
            yield LeftOut(name, "sampling_rejection", "This is the rule asked for.")
        elif rule.drafts == "top" and bench.rule.drafts == "top":
            reason = "For top drafts it accepts as often as the rule asked for: a draft is kept with the target's "
            yield LeftOut(name, "sampling_rejection", reason + "probability of it.")
        elif rule.needs_chain and bench.tree.topk > 1:
            yield LeftOut(name, "sampling_rejection", "The rule is for chains.")
        elif (verdict := bench.replayable(rule)).kind == "impossible":
            yield LeftOut(name, "sampling_rejection", f"Here {verdict.reason}.", verdict.action)
        else:
            yield Hypothesis(name, "sampling_rejection", f"It {does}.", fix, looks, Wiring(rule=rule))

    name, sampled = "rule-match-of-sampled-drafts", AcceptanceRule("rejection", "sampled")
    if bench.is_greedy:
        yield LeftOut(name, "sampling_rejection", "At temperature 0 every rule is the greedy one.")
    elif bench.tree.topk > 1:
        yield LeftOut(name, "sampling_rejection", "The rule is for chains.")
    elif (verdict := bench.replayable(sampled)).kind == "impossible":
        yield LeftOut(name, "sampling_rejection", f"Here {verdict.reason}.", verdict.action)
    else:
        does = "It samples drafts, and keeps one only if the target draws the same token."
        yield Hypothesis(name, "sampling_rejection", does, fix, looks, Wiring(matches_draws=True))


def _reading(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    name, read = "as-engine-reads", bench.engine_draft
    if read is None:
        reason = "It is not known which engine reads the draft's files."
        yield LeftOut(name, "engine_reading", reason, "Name the engine (--engine, or its command).")
    elif not read.differences:
        yield LeftOut(name, "engine_reading", "This engine runs the draft as it was trained.")
    elif action := bench.lacking(read.draft.capture_points):
        streams = read.draft.capture_points
        reason = f"The trace lacks some of the capture points {','.join(map(str, streams))}."
        yield LeftOut(name, "engine_reading", reason, action, streams)
    else:
        does = f"{read.explanation.case.release} reads the files differently: {'; '.join(read.differences)}."
        fix = "`eagle3ref explain` says what each difference comes from and how to write the files for this engine."
        wiring = Wiring(as_engine_reads=True)
        yield Hypothesis(name, "engine_reading", does, fix, "as the engine's own files say", wiring)

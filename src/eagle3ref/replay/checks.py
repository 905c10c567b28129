"""Refusals before a replay: a trace that is not the draft's, or that says nothing about the rule."""

from __future__ import annotations

from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.replay.replayability import replayability
from eagle3ref.trace import Trace


def check_fit(trace: Trace, draft: Eagle3Draft, tree: TreeConfig) -> None:
    """Refuse a trace that is empty or was not recorded for this draft, and a topk that the draft cannot give."""
    doing = f"replaying the trace {trace.path}"
    header = trace.header
    if not len(trace):
        raise Eagle3RefError(
            doing, found="no sequence", expected="at least one", action="Record prompts with `capture` first."
        )
    missing = [point for point in draft.capture_points if point not in header.capture_points]
    if missing:
        both = sorted({*header.capture_points, *draft.capture_points})
        raise Eagle3RefError(
            doing,
            found=f"states recorded at capture points {header.capture_points}",
            expected=f"the draft's {draft.capture_points}",
            action=f"Record again with --capture-points {','.join(map(str, both))}, or correct the draft's ids: "
            "replaying other layers would only give a lower number.",
        )
    draft.config.check_target(header.target.hidden_size, header.target.vocab_size, doing)
    if tree.topk > draft.config.draft_vocab_size:
        limit = f"at most {draft.config.draft_vocab_size}, the draft vocabulary"
        raise Eagle3RefError(doing, found=f"topk {tree.topk}", expected=limit, action="Lower topk.")


def check_answers(trace: Trace, tree: TreeConfig) -> None:
    """Refuse answers of which none is longer than the lookahead."""
    doing = f"replaying the trace {trace.path}"
    longest = max(entry.num_tokens - entry.prompt_length for entry in trace.entries)
    if tree.num_steps >= longest:
        found = f"answers of at most {longest} tokens"
        needed = f"one of more than num_steps = {tree.num_steps}, or every round runs past the end of the record"
        raise Eagle3RefError(doing, found=found, expected=needed, action="Lower num_steps, or record longer answers.")


def check_rule(trace: Trace, tree: TreeConfig, rule: AcceptanceRule, *, has_target: bool) -> None:
    """Refuse a rule that the trace says nothing about, and one for chains on a tree."""
    doing = f"replaying the trace {trace.path} under the rule {rule.name}"
    if rule.needs_chain and tree.topk > 1:
        action = "Use topk 1, or the rule target_only or multi_round."
        raise Eagle3RefError(doing, found=f"topk {tree.topk}", expected="a chain, topk 1", action=action)
    has_states = trace[0].final_hidden_state is not None
    verdict = replayability(rule, trace.header, has_final_hidden_state=has_states, has_target=has_target)
    if verdict.kind == "impossible":
        sampling = trace.header.sampling
        settings = f"temperature {sampling.temperature:g}, top_k {sampling.top_k}, top_p {sampling.top_p:g}"
        needs_probabilities = rule.drafts == "sampled" and default_rule(sampling.temperature).name != "greedy"
        lacking = "with final hidden states, and no target" if has_states else "without final hidden states"
        found = f"{settings}, {lacking}" if needs_probabilities else settings
        raise Eagle3RefError(doing, found=found, expected=f"what decides: {verdict.reason}", action=verdict.action)

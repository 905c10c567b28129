"""What a trace says about an acceptance rule: the rounds exactly, rounds of the right distribution, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3ref.config import AcceptanceRule, default_rule
from eagle3ref.trace import TraceHeader


@dataclass(frozen=True)
class Replayability:
    """The verdict on one rule and one trace; docs/acceptance.md has the table, docs/rules.md the arguments.

    Args:
        kind: ``exact``: the rounds of a server, unless tokens turn out not to be the target's first choice;
            ``unbiased``: rounds distributed as a server's; ``impossible``: the trace does not hold what the rule needs.
        expected: whether expected acceptance can be computed too.
        reason: why, one sentence.
        action: what to record or to pass when it is impossible; else empty.
    """

    kind: Literal["exact", "unbiased", "impossible"]
    expected: bool
    reason: str
    action: str = ""


def replayability(
    rule: AcceptanceRule, header: TraceHeader, *, has_final_hidden_state: bool, has_target: bool
) -> Replayability:
    """Whether rounds under this rule can be replayed from such a trace.

    Args:
        rule: its temperature, top-k and top-p are those that the trace was sampled with.
        header: of the trace.
        has_final_hidden_state: whether its sequences hold the target's final hidden states.
        has_target: whether the target's output projection is at hand, which turns them into probabilities.
    """
    temperature, has_probabilities = header.sampling.temperature, has_final_hidden_state and has_target
    is_greedy = default_rule(temperature).name == "greedy"
    if rule.name == "greedy" and not is_greedy:
        reason = f"the greedy rule follows the target's first choices; these are draws at temperature {temperature:g}"
        return _impossible(reason, "Capture again with temperature 0.")
    if rule.name != "greedy" and is_greedy:
        reason = f"the rule {rule.name} follows draws of the target; these are its first choices (temperature 0)"
        return _impossible(
            reason, "Capture with the temperature to measure at. At temperature 0 every rule is the greedy one."
        )
    if not rule.lossless:
        reason = "thresholds below 1 change the text, so a record of the target's own text is not what it would write"
        return _impossible(reason, "Decode live with this rule, or set both thresholds to 1.")
    if rule.drafts == "sampled" and not has_probabilities:
        reason = "whether a sampled draft is kept depends on the target's probabilities, which are missing"
        missing = "pass the target" if has_final_hidden_state else "capture with --final-hidden-state; pass the target"
        return _impossible(reason, f"To have them, {missing}.")
    if rule.name == "greedy":
        return Replayability("exact", has_probabilities, "a draft is kept if and only if it is the recorded next token")
    if rule.drafts == "sampled":
        reason = "a recorded token was drafted and kept with a probability that is known, and it is drawn here"
        return Replayability("unbiased", has_probabilities, reason)
    reason = "a draft is kept if and only if it is the next token, and the record is a draw of the target's text"
    return Replayability("unbiased", has_probabilities, reason)


def _impossible(reason: str, action: str) -> Replayability:
    return Replayability("impossible", False, reason, action)

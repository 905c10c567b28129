"""The acceptance rule: which draft tokens a verification round keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3ref.errors import Eagle3RefError

GREEDY_TEMPERATURE = 1e-6  # below it SGLang 0.5.23 decodes greedily (sampling_params.py)

RuleName = Literal["greedy", "target_only", "rejection", "block", "multi_round"]
DraftChoice = Literal["top", "sampled"]

RULE_MEANING: dict[RuleName, str] = {
    "greedy": "a draft token is kept if it is the target's first choice",
    "target_only": "the next token is drawn from the target and kept if it is among the drafts (SGLang's default)",
    "rejection": "a draft token is kept with probability target / draft, else drawn again from what is left of the "
    "target (arXiv 2211.17192, algorithm 1)",
    "block": "rejection sampling of the drafts as one block (arXiv 2403.10444, algorithm 2)",
    "multi_round": "siblings are tried one after the other, each a rejected one taken out of the target (EAGLE's code)",
}
CHAIN_RULES = ("rejection", "block")


@dataclass(frozen=True)
class AcceptanceRule:
    """How a verification round decides. Greedy sampling (temperature 0) is the rule ``greedy`` in every engine.

    Args:
        name: of the rule; ``RULE_MEANING`` says it in words.
        drafts: how the chain's draft tokens are chosen: the draft's ``top`` choices, which the rule then takes for
            certain (draft probability 1), or ``sampled`` from the draft at the request's temperature. Trees, and all
            rules but ``rejection`` and ``block``, are always ``top``.
        threshold_single: of ``target_only``: a token at least this probable is kept whatever the coin says.
        threshold_acc: of ``target_only``: the coin is compared with accumulated probability / threshold_acc.
        inclusive: of ``target_only``: the coin is compared by ``<=``, without asking for positive mass, as SGLang did
            before PR #35798.

    Raises:
        Eagle3RefError: an unknown name, a setting out of its range, or one that the rule does not have.
    """

    name: RuleName = "greedy"
    drafts: DraftChoice = "top"
    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    inclusive: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in RULE_MEANING:
            self._refuse(f"one of {', '.join(RULE_MEANING)}")
        if self.drafts not in ("top", "sampled") or (self.drafts == "sampled" and self.name not in CHAIN_RULES):
            self._refuse(f"drafts 'top', or 'sampled' with one of the rules {', '.join(CHAIN_RULES)}")
        thresholds = (self.threshold_single, self.threshold_acc)
        if not all(isinstance(threshold, int | float) and 0 <= threshold <= 1 for threshold in thresholds):
            self._refuse("thresholds from 0 to 1")
        if not isinstance(self.inclusive, bool):
            self._refuse("inclusive true or false")
        if self.name != "target_only" and (*thresholds, self.inclusive) != (1, 1, False):
            self._refuse("thresholds 1 and a strict comparison: only target_only has them")

    @property
    def needs_chain(self) -> bool:
        """Whether the rule knows no siblings: topk 1 only."""
        return self.name in CHAIN_RULES

    @property
    def lossless(self) -> bool:
        """Whether the text is distributed as the target's own."""
        return (self.threshold_single, self.threshold_acc) == (1, 1)

    def _refuse(self, expected: str) -> None:
        action = "Correct the rule, or leave it out: the engine's or the greedy one is then used."
        raise Eagle3RefError("reading the acceptance rule", found=str(self), expected=expected, action=action)


def default_rule(temperature: float) -> AcceptanceRule:
    """Where none is named: greedy at temperature 0, else target-only sampling, SGLang's default."""
    return AcceptanceRule("greedy" if temperature < GREEDY_TEMPERATURE else "target_only")

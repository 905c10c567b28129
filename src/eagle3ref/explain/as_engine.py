"""A draft as one engine would run it: its capture points, its embedding and head, without the keys it ignores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.draft import Eagle3Draft, load_draft
from eagle3ref.engines import EngineProfile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.explanation import Explanation, explain
from eagle3ref.explain.trap import Trap
from eagle3ref.target import Target, shared_weights

# Traps after which nothing is left to reproduce, and what the engine would need: without it, parts of the draft are
# whatever lies in memory, or do not run.
_NEEDED = {
    "missing-lm-head": "the draft's head in the file",
    "unsaid-vocabulary": "draft_vocab_size in config.json, as large as the draft's head",
    "missing-tensors": "every tensor of the network, under a name that this engine reads",
    "other-number-of-layers": "the weights of every layer that config.json names",
    "capture-off": "a config.json that leaves capture on: fc is skipped without it",
    "skipped-fc": "aux hidden states of another width than the draft's, so that fc runs",
    "wrong-algorithm": "the algorithm that hands over the target's aux hidden states",
}

# Traps of settings that a draft cannot be loaded with: steps that change with the load, and a window whose width
# differs by one from backend to backend.
_NOT_REPRODUCED = (("adaptive", "harmless"), ("draft-window", "silent, costs acceptance"))

# The refusals that say nothing of the draft's numbers: with a shorter context, or with the draft's name and the number
# of tokens on the server's own command line, the same draft runs.
_SHORT_CONTEXT = "short-context"
_OF_THE_COMMAND = (_SHORT_CONTEXT, "incomplete-config")


@dataclass(frozen=True)
class EngineDraft:
    """A draft as an engine runs it, and what is different about it.

    Args:
        draft: ready for ``replay`` and ``decode``.
        explanation: of the engine, the files and the flags.
        differences: from the draft as it was trained, one sentence each; empty if there are none.
    """

    draft: Eagle3Draft
    explanation: Explanation
    differences: tuple[str, ...]

    @property
    def profile(self) -> EngineProfile:
        """Of the engine."""
        return self.explanation.case.profile

    def tree(self, asked: TreeConfig | None = None) -> TreeConfig:
        """The tree that the engine runs: for the flags, or for ``asked``.

        Raises:
            Eagle3RefError: it runs none, or no such one, or the flags ask for another.
        """
        profile, found = self.profile, self.explanation.wiring.tree
        doing = f"choosing a tree as {self.explanation.case.release} would"
        if asked is not None:
            if found.asked and str(asked) != str(found.tree):
                action = "Say it once: by the server's flags, or by --num-steps, --topk and --num-draft-tokens."
                flags = f"{found.tree}, what the server's flags make" if found.tree else "server flags that make a tree"
                raise Eagle3RefError(doing, found=f"a tree {asked}", expected=flags, action=action)
            if asked.topk > 1 and not profile.trees:
                chain = "a chain: this engine has no trees"
                raise Eagle3RefError(doing, found=f"a tree {asked}", expected=chain, action="Use topk 1.")
            return replace(asked, tree_kv=profile.tree_kv or asked.tree_kv)
        if found.tree is None:
            action = "Give --num-steps, or the server's own flags."
            raise Eagle3RefError(doing, found=found.how, expected="a number of speculative tokens", action=action)
        return found.tree

    def rule(self, asked: AcceptanceRule | None = None) -> AcceptanceRule | None:
        """The engine's rule at temperature > 0, for the flags, or ``asked``; None if it is not established.

        Raises:
            Eagle3RefError: the flags ask for another one.
        """
        found = self.explanation.wiring.rule
        if asked is not None and found is not None and found not in (asked, self.profile.sampled_rule):
            raise Eagle3RefError(
                f"choosing a rule as {self.explanation.case.release} would",
                found=f"the rule {_in_words(asked)}",
                expected=f"{_in_words(found)}, as the server's flags say",
                action="Say it once: by the server's flags, or by --rule and --sampled-drafts.",
            )
        return asked or found


def load_draft_as(
    engine: str,
    folder: str | Path,
    target: Target | str | Path,
    flags: Sequence[str] = (),
    *,
    capture_points: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> EngineDraft:
    """Load a draft and rewire it as an engine would, right or wrong.

    Refused are the traps that ``explain`` finds at which the server fails, at its start or its first forward, and those
    at which it runs without the draft's own weights: a missing head, missing tensors or layers, a skipped ``fc``,
    another algorithm. A draft whose context is shorter than the server's is only listed in ``differences``: the numbers
    are unaffected.

    Args:
        engine: as ``engine_profile`` takes it, e.g. ``"vllm==0.32.0"``.
        folder: of the draft.
        target: the target or its folder.
        flags: of the server, as typed.
        capture_points: what the draft was trained on, when its files do not say so. The engine does not ask.
        device: where the weights go.
        dtype: of the weights; the checkpoint's when None.

    Raises:
        Eagle3RefError: the engine would fail, run on random values, or run settings that are not reproduced here; a
            draft that cannot be loaded; an unknown engine.
    """
    shared = shared_weights(target)
    explanation = explain(folder, shared.config, engine, flags, capture_points=capture_points)
    for trap in explanation.traps:
        if (trap.severity.startswith("fails") and trap.name not in _OF_THE_COMMAND) or trap.name in _NEEDED:
            raise _not_run(explanation, trap)
        if (trap.name, trap.severity) in _NOT_REPRODUCED:
            raise _not_reproduced(explanation, trap)
    wiring = explanation.wiring
    loaded = load_draft(folder, target=target, capture_points=wiring.captured.points, device=device, dtype=dtype)
    draft, name = loaded.rewired(wiring.config), explanation.case.release
    draft.origins["capture points"] = f"{draft.capture_points}, as {name} reads them: {wiring.captured.note}"
    if wiring.embedding == "target":
        draft.embed_tokens.weight = _parameter(shared.embedding(), draft)
        draft.origins["embedding"] = f"the target's, as {name} has it"
    if wiring.lm_head in ("target", "embedding"):
        tied = wiring.lm_head == "embedding"
        draft.lm_head.weight = _parameter(shared.embedding() if tied else shared.lm_head(), draft)
        draft.origins["lm_head"] = f"the target's{' embedding' if tied else ''}, as {name} has it"
    return EngineDraft(draft, explanation, _differences(explanation))


def _in_words(rule: AcceptanceRule) -> str:
    thresholds = "" if rule.lossless else f", thresholds {rule.threshold_single:g} and {rule.threshold_acc:g}"
    return f"{rule.name} with {rule.drafts} drafts{thresholds}"


def _parameter(values: Tensor, draft: Eagle3Draft) -> nn.Parameter:
    like = draft.fc.weight
    return nn.Parameter(values.to(device=like.device, dtype=like.dtype), requires_grad=False)


def _not_run(explanation: Explanation, trap: Trap) -> Eagle3RefError:
    case = explanation.case
    fails = trap.severity.startswith("fails")
    server = "fail" + trap.severity.removeprefix("fails") if fails else "start and accept next to nothing"
    needed = "files and flags that this engine runs" if fails else _NEEDED[trap.name]
    return Eagle3RefError(
        f"loading draft {case.draft.folder} as {case.release} would",
        found=trap.what,
        expected=f"{needed}; as it is, the server would {server} ({trap.seen.removeprefix('no error; ')})",
        action=trap.fix,
    )


def _not_reproduced(explanation: Explanation, trap: Trap) -> Eagle3RefError:
    return Eagle3RefError(
        f"loading draft {explanation.case.draft.folder} as {explanation.case.release} would",
        found=trap.what,
        expected="settings that are reproduced here: a fixed tree, and the draft's own attention",
        action="Leave the flag out, here and on the server that you compare with.",
    )


def _differences(explanation: Explanation) -> tuple[str, ...]:
    """The silent traps of the draft itself; those of the flags are in the tree and the rule."""
    kinds = (
        "other-capture-points",
        "ids-not-read",
        "ids-out-of-order",
        "ignored-key",
        "replaced-embedding",
        "replaced-lm-head",
        _SHORT_CONTEXT,
    )
    return tuple(trap.what for trap in explanation.traps if trap.name in kinds and trap.is_wrong)

"""The acceptance of every setting, from one replay for each topk."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3ref.acceptance import AcceptanceCounts, Kind
from eagle3ref.acceptance.ratios import IntArray
from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import Difference, paired_difference
from eagle3ref.tune.walk import Counts


@dataclass(frozen=True, eq=False)
class Surface:
    """Integers of K settings on the same P prompts; each setting was walked as a server would have run it.

    Args:
        settings: K different ones.
        prompt_ids: P, in the order of the trace.
        histogram: int32 [K, P, S + 1], complete rounds by accepted drafts, S the largest num_steps.
        censored_rounds: int32 [K, P], rounds whose own num_steps tokens run past the record.
        off_argmax_tokens: int64 [P], recorded tokens that are not the target's first choice.
        recorded_tokens: int64 [P], generated tokens recorded.
        kind: what the counts claim, as ``AcceptanceCounts.kind``.
        rule: that decided which drafts were kept.
        chain_runs: for each prompt unsigned [R], how many drafts in a row are right from each root, up to the longest
            chain; empty if no chain is among the settings.
    """

    settings: tuple[TreeConfig, ...]
    prompt_ids: tuple[str, ...]
    histogram: Counts
    censored_rounds: Counts
    off_argmax_tokens: IntArray
    recorded_tokens: IntArray
    kind: Kind
    rule: AcceptanceRule
    chain_runs: tuple[NDArray[np.unsignedinteger[Any]], ...] = ()

    @cached_property
    def rounds(self) -> IntArray:
        """int64 [P, K], complete rounds."""
        rounds: IntArray = self.histogram.sum(-1, dtype=np.int64).T
        return rounds

    @cached_property
    def tokens(self) -> IntArray:
        """int64 [P, K], tokens that these rounds committed, the bonus token of each counted."""
        committed = np.arange(1, self.histogram.shape[-1] + 1)
        tokens: IntArray = np.einsum("kpc,c->pk", self.histogram, committed)
        return tokens

    @property
    def acceptance_lengths(self) -> NDArray[np.float64]:
        """float64 [K], tokens a round, bonus counted; nan where no round is complete."""
        rounds = self.rounds.sum(0)
        lengths = np.full(len(rounds), np.nan)
        np.divide(self.tokens.sum(0), rounds, out=lengths, where=rounds > 0)
        return lengths

    def index(self, tree: TreeConfig) -> int:
        """The place of a setting.

        Raises:
            Eagle3RefError: it is none of these.
        """
        if tree in self._place:
            return self._place[tree]
        raise Eagle3RefError(
            "reading the surface",
            found=f"the setting {tree} with tree_kv {tree.tree_kv!r}",
            expected=f"one of the {len(self.settings)} that were tuned, such as {self.settings[0]}",
            action="Tune with its topk, and with num_steps and num_draft_tokens as large as its own.",
        )

    def counts(self, tree: TreeConfig) -> AcceptanceCounts:
        """The counts of one setting: those of ``replay``, but for where a tree's drafts were offered.

        Raises:
            Eagle3RefError: as ``index``.
        """
        at, steps = self.index(tree), tree.num_steps
        histogram = self.histogram[at, :, : steps + 1].astype(np.int64)
        offered = np.repeat(histogram.sum(1, keepdims=True), steps, axis=1)  # a chain offers one draft at each depth
        return AcceptanceCounts(
            tree=tree,
            prompt_ids=self.prompt_ids,
            histogram=histogram,
            proposed_at=offered if tree.topk == 1 else None,
            censored_rounds=self.censored_rounds[at].astype(np.int64),
            off_argmax_tokens=self.off_argmax_tokens,
            recorded_tokens=self.recorded_tokens,
            kind=self.kind,
            rule=self.rule,
        )

    def difference(self, first: TreeConfig, second: TreeConfig) -> Difference:
        """Acceptance length of one setting minus another's, paired by prompt.

        For two settings that were named beforehand. To find the best of many use ``rank``, which allows for their
        number.

        Raises:
            Eagle3RefError: as ``index``, or one of them has no complete round.
        """
        return paired_difference(*(self.counts(tree).ratio("acceptance_length") for tree in (first, second)))

    def restricted(self, prompts: NDArray[np.intp]) -> Surface:
        """The same settings on some of the prompts, by their places."""
        names = ("off_argmax_tokens", "recorded_tokens")
        return replace(
            self,
            prompt_ids=tuple(self.prompt_ids[i] for i in prompts),
            histogram=self.histogram[:, prompts],
            censored_rounds=self.censored_rounds[:, prompts],
            chain_runs=tuple(self.chain_runs[i] for i in prompts) if self.chain_runs else (),
            **{name: getattr(self, name)[prompts] for name in names},
        )

    @cached_property
    def _place(self) -> dict[TreeConfig, int]:
        return {tree: place for place, tree in enumerate(self.settings)}

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the integers of each setting, summed over prompts; ``counts`` has them by prompt."""
        lengths = self.acceptance_lengths
        return {
            "prompts": len(self.prompt_ids),
            "kind": self.kind,
            "rule": asdict(self.rule),
            "off_argmax_tokens": int(self.off_argmax_tokens.sum()),
            "recorded_tokens": int(self.recorded_tokens.sum()),
            "settings": [
                {
                    **asdict(tree),
                    "acceptance_length": None if np.isnan(lengths[k]) else float(lengths[k]),
                    "histogram": self.histogram[k, :, : tree.num_steps + 1].sum(0).tolist(),
                    "censored_rounds": int(self.censored_rounds[k].sum()),
                }
                for k, tree in enumerate(self.settings)
            ],
        }

"""Replaying sequences of a trace under a wiring, and counting the draft rows that it takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.diagnose.wiring import Wiring
from eagle3ref.diagnose.wiring_feed import WiredFeed, noisy
from eagle3ref.diagnose.wiring_network import rewire
from eagle3ref.diagnose.wiring_own_rows import OwnRows
from eagle3ref.draft import DraftOutput, Eagle3Draft
from eagle3ref.explain import EngineDraft
from eagle3ref.replay import SequenceRounds
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.play import Play, choose_play
from eagle3ref.replay.probabilities import RecordedProbabilities, TargetHead, target_head
from eagle3ref.replay.walk import read_sequences, walk
from eagle3ref.target import SharedWeights, Target, shared_weights
from eagle3ref.trace import RecordedSequence, Trace

_KEPT_BATCHES = 4  # batches of committed rows in memory: the right ones, and those of the wirings at work


class WiringReplay:
    """As ``Laboratory``, for batches that fit into memory.

    Attributes:
        forwards: draft forwards run.
        rows: rows times layers of them.
        plain_rows: rows times layers that the right wiring needed, those included that it found made.
    """

    def __init__(
        self,
        trace: Trace,
        draft: Eagle3Draft,
        tree: TreeConfig,
        rule: AcceptanceRule,
        target: Target | str | Path | None,
        engine_draft: EngineDraft | None,
        seed: int,
    ) -> None:
        self._trace, self._draft, self._tree, self._rule, self._seed = trace, draft, tree, rule, seed
        self._target, self._engine_draft = target, engine_draft
        self._batches: OrderedDict[tuple[Wiring, tuple[int, ...]], tuple[Batch, int]] = OrderedDict()
        self._last: tuple[Wiring, Eagle3Draft] | None = None
        self._finite: set[int] = set()
        self.forwards = self.rows = self.plain_rows = 0

    @torch.inference_mode()
    def run(self, wiring: Wiring, indices: Sequence[int]) -> list[SequenceRounds]:
        """The rounds of the sequences at these indices of the trace."""
        batch, needed = self._committed(wiring.prefix_only(), tuple(indices))
        draft, before = self._network(wiring), self.rows
        play = self._play(wiring, batch, draft, indices)
        if wiring.no_drafts_from is not None:
            play = partial(_play_until, play, wiring.no_drafts_from)
        if wiring.first_row_lag:
            batch = replace(batch, state=_later(batch.state, wiring), normed=_later(batch.normed, wiring))
        rounds = walk(batch, draft, wiring.tree or self._tree, play, self._trace.header.sampling.max_new_tokens)
        if wiring == Wiring():
            self.plain_rows += needed + self.rows - before
        return rounds

    def _committed(self, wiring: Wiring, indices: tuple[int, ...]) -> tuple[Batch, int]:
        """The batch with its committed rows, and what these cost when they were made."""
        key = (wiring, indices)
        if key not in self._batches:
            draft, before = self._network(wiring), self.rows
            streams = wiring.streams or draft.capture_points
            feed = WiredFeed(self._sequences(indices), streams, draft.target_ids.device, wiring)
            self._batches[key] = Batch.of(feed, draft), self.rows - before
        self._batches.move_to_end(key)
        while len(self._batches) > _KEPT_BATCHES:
            self._batches.popitem(last=False)
        return self._batches[key]

    def _sequences(self, indices: Sequence[int]) -> list[RecordedSequence]:
        """As ``read_sequences``; every byte is looked at once, whatever the number of wirings."""
        unseen = [i for i in indices if i not in self._finite]
        read_sequences(self._trace, unseen)
        self._finite.update(unseen)
        return [self._trace[i] for i in indices]

    def _play(self, wiring: Wiring, batch: Batch, draft: Eagle3Draft, indices: Sequence[int]) -> Play:
        if wiring.keeps_own_rows and isinstance(batch.feed, WiredFeed):
            return OwnRows(batch, batch.feed, draft, wiring.loop)
        rule = wiring.rule or self._rule
        probabilities = None
        if (wiring.matches_draws or rule.drafts == "sampled") and self._head is not None:
            probabilities = RecordedProbabilities(batch.feed.sequences, self._head, self._trace.header)
        return choose_play(
            batch,
            rule,
            probabilities,
            indices,
            self._seed,
            wiring.loop,
            every_tree=wiring == Wiring(),
            matches_draws=wiring.matches_draws,
        )

    def _network(self, wiring: Wiring) -> Eagle3Draft:
        """The draft of a wiring; the last one is kept, since batch follows batch."""
        if self._last is None or self._last[0] != wiring:
            self._last = None  # not two large heads in memory at once
            self._last = wiring, self._rewired(wiring)
        return self._last[1]

    def _rewired(self, wiring: Wiring) -> Eagle3Draft:
        read = self._engine_draft if wiring.as_engine_reads else None
        other = rewire(self._draft if read is None else read.draft, wiring, self._shared)
        other.register_forward_hook(self._count)
        if wiring.noise:
            other.register_forward_hook(partial(_disturbed, wiring.noise))
        return other

    def _count(self, _draft: nn.Module, inputs: tuple[Tensor, ...], _output: object) -> None:
        self.forwards += 1
        self.rows += inputs[0][..., 0].numel() * len(self._draft.layers)

    @cached_property
    def _shared(self) -> SharedWeights | None:
        return None if self._target is None else shared_weights(self._target)

    @cached_property
    def _head(self) -> TargetHead | None:
        return None if self._target is None else target_head(self._target, self._trace, self._draft.target_ids.device)


def _play_until(
    play: Play, end: int, batch: Batch, root: Tensor, active: Tensor, draft: Eagle3Draft, tree: TreeConfig
) -> Outcome:
    """As ``play``, but what is drafted from the root ``end`` on is never accepted."""
    outcome = play(batch, root, active, draft, tree)
    return outcome._replace(num_accepted=outcome.num_accepted.where(root < end, 0))


def _disturbed(seed: int, _draft: nn.Module, _inputs: tuple[Tensor, ...], output: DraftOutput) -> DraftOutput:
    """What comes out of the draft, in other arithmetic; its rows of the cache follow from states that are."""
    return output._replace(state=noisy(output.state, seed), normed=noisy(output.normed, seed))


def _later(rows: Tensor, wiring: Wiring) -> Tensor:
    """[B, T, C], each row replaced by the one ``first_row_lag`` before it; the first rows by the first."""
    source = (torch.arange(rows.shape[1], device=rows.device) - wiring.first_row_lag).clamp_min(0)
    return rows[:, source]

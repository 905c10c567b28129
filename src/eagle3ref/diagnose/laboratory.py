"""The mutation laboratory: one trace replayed under many wirings, each sequence once for each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.catalogue import list_hypotheses
from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis, LeftOut
from eagle3ref.diagnose.wiring import Wiring
from eagle3ref.diagnose.wiring_replay import WiringReplay
from eagle3ref.draft import Eagle3Draft
from eagle3ref.explain import EngineDraft
from eagle3ref.replay import SequenceRounds, count_rounds
from eagle3ref.replay.checks import check_answers, check_fit, check_rule
from eagle3ref.replay.replay import DEFAULT_BATCH_TOKENS
from eagle3ref.replay.rounds import kind_of
from eagle3ref.replay.walk import batches
from eagle3ref.target import Target
from eagle3ref.trace import Trace


@dataclass(frozen=True)
class Prediction:
    """The rounds that a server with this wiring would have run.

    Args:
        hypothesis: the wiring.
        tree: its tree; another one than asked for where the hypothesis is about the tree.
        rule: that decided; the one asked for where the hypothesis is about a rule that has no name here.
        rounds: of the sequences asked for, in that order; every round of each. Where the wiring is not the right one, a
            tree that accepts nothing is not built, and ``proposed_at`` has its drafts level by level from the root.
        counts: their sums.
    """

    hypothesis: Hypothesis
    tree: TreeConfig
    rule: AcceptanceRule
    rounds: tuple[SequenceRounds, ...]
    counts: AcceptanceCounts


class Laboratory:
    """Replays a trace under every known mis-wiring, and shares what the wirings have in common.

    A sequence is replayed once for each hypothesis and remembered. Wirings that leave the committed draft rows as they
    are share these rows. What was really run is counted.

    Args:
        trace: recorded at the draft's capture points. Neighbouring points and final hidden states make more
            hypotheses testable.
        draft: as it was trained.
        tree: the server's tree settings.
        rule: the server's rule; as ``replay`` chooses when None.
        target: or its folder. Its embedding, head and rope settings make more hypotheses testable.
        engine_draft: the draft as an engine reads its files; a hypothesis of its own if that differs.
        seed: of the coins of rules with sampled drafts.
        batch_tokens: as in ``replay``.

    Attributes:
        hypotheses: those that this trace can tell about; the right wiring comes first.
        left_out: the others, with their reasons.
        to_record: how to record a trace that can tell about all those that lack states; empty if none does.

    Raises:
        Eagle3RefError: as ``replay``.
    """

    def __init__(
        self,
        trace: Trace,
        draft: Eagle3Draft,
        tree: TreeConfig,
        *,
        rule: AcceptanceRule | None = None,
        target: Target | str | Path | None = None,
        engine_draft: EngineDraft | None = None,
        seed: int = 0,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
    ) -> None:
        self.trace, self.tree, self._batch_tokens = trace, tree, batch_tokens
        self.rule = rule or default_rule(trace.header.sampling.temperature)
        check_fit(trace, draft, tree)
        check_answers(trace, tree)
        check_rule(trace, tree, self.rule, has_target=target is not None)
        bench = Bench.of(trace, draft, tree, self.rule, target, engine_draft)
        self.hypotheses, self.left_out = list_hypotheses(bench)
        self.to_record = bench.lacking([stream for left in self.left_out for stream in left.streams])
        self._replay = WiringReplay(trace, draft, tree, self.rule, target, engine_draft, seed)
        self._known: dict[Wiring, dict[int, SequenceRounds]] = defaultdict(dict)

    @property
    def untestable(self) -> tuple[LeftOut, ...]:
        """Hypotheses that need what the trace or the call lacks."""
        return tuple(left for left in self.left_out if not left.is_identity)

    @property
    def identities(self) -> tuple[LeftOut, ...]:
        """Hypotheses that are the right wiring for this draft and this trace."""
        return tuple(left for left in self.left_out if left.is_identity)

    @property
    def forwards(self) -> int:
        """Draft forwards really run, of however many rows."""
        return self._replay.forwards

    @property
    def rows(self) -> int:
        """Rows times layers of the draft really run."""
        return self._replay.rows

    @property
    def replay_rows(self) -> int:
        """Rows times layers of one plain replay of the whole trace, which is run if it was not yet."""
        self.predict(RIGHT)
        return self._replay.plain_rows

    @property
    def cost(self) -> float:
        """What was run so far, in plain replays of the whole trace."""
        plain = self.replay_rows
        return self.rows / plain

    def predict(self, hypothesis: Hypothesis, indices: Iterable[int] | None = None) -> Prediction:
        """The rounds of some sequences of the trace under a hypothesis.

        Args:
            hypothesis: one of this laboratory's, or two of them at once.
            indices: places in the trace; all of it when None. What was replayed before is not run again.
        """
        return self.predict_all([hypothesis], indices)[0]

    def predict_all(
        self, hypotheses: Sequence[Hypothesis], indices: Iterable[int] | None = None
    ) -> tuple[Prediction, ...]:
        """As ``predict``, of several; those that share committed rows run together, whatever their order."""
        asked = tuple(range(len(self.trace)) if indices is None else indices)
        by_rows: dict[Wiring, list[Wiring]] = defaultdict(list)
        for hypothesis in hypotheses:
            by_rows[hypothesis.wiring.prefix_only()].append(hypothesis.wiring)
        for batch in batches(self.trace, set(asked), self._batch_tokens):
            for wirings in by_rows.values():
                for wiring in wirings:
                    self._run(wiring, batch)
        return tuple(self._prediction(hypothesis, asked) for hypothesis in hypotheses)

    def plausible_pairs(self, hypotheses: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
        """Every two of these that may come together: of different causes, with knobs that do not exclude each other."""
        some = list(hypotheses)
        pairs = [a.and_also(b) for i, a in enumerate(some) for b in some[i + 1 :] if a.cause != b.cause]
        return tuple(pair for pair in pairs if pair is not None)

    def _run(self, wiring: Wiring, batch: Sequence[int]) -> None:
        known = self._known[wiring]
        new = [i for i in batch if i not in known]
        if new:
            known.update(zip(new, self._replay.run(wiring, new), strict=True))

    def _prediction(self, hypothesis: Hypothesis, indices: Sequence[int]) -> Prediction:
        wiring = hypothesis.wiring
        rounds = tuple(self._known[wiring][i] for i in indices)
        tree, rule = wiring.tree or self.tree, wiring.rule or self.rule
        return Prediction(hypothesis, tree, rule, rounds, count_rounds(rounds, tree, kind_of(rule, rounds), rule))

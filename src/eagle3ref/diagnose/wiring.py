"""Every knob of a mis-wiring in one place; the default is the right wiring."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from eagle3ref.config import AcceptanceRule, FinalNorm, RopeConfig, TreeConfig
from eagle3ref.draft import DraftLoop

Stream = int | Literal["final"]
"""A capture point, or the target's final hidden state (after the final norm)."""
Head = Literal["draft", "target", "target rows", "target d2t", "random"]
Vocabulary = Literal["d2t", "ignored", "absolute", "doubled", "shuffled"]
Embedding = Literal["draft", "target", "random", "shuffled", "rotated"]
WrongToken = Literal["", "prompt end: own", "prompt end: zero", "chunk end: own", "chunk end: first choice"]


@dataclass(frozen=True)
class Wiring:
    """How an engine feeds and runs a draft.

    What a committed draft row is made of:

    Args:
        streams: the residual streams handed over, in the order that ``fc`` takes them; the trained ones when None.
        zeroed: places in ``streams`` whose state is all zeros.
        rounding: states rounded to so many bits with one scale for each token and stream.
        rotated: states in a rotated basis, as QuaRot's targets have them.
        state_lag: row p takes the states of p - lag.
        token_lag: row p takes the token p + 1 - lag.
        wrong_token: rows at the end of the prompt, or of each chunk of it, that take another next token: the row's own
            token again, id 0, or the target's first choice.
        chunk: tokens of a prefill chunk.
        cached_share: this share of the prompt came from a prefix cache, without draft rows.
        window: only so many rows back are seen.

    The network:

        bypasses_fc: the state goes into the decoder layer as it is.
        final_norm: who reads the normed stream, see ``FINAL_NORM_MEANING``; the draft's own when None.
        norm_before_residual, double_norm, fc_norm, norm_before_fc: as in ``DraftConfig``; the draft's own when None.
        swaps_inputs: the decoder layer takes [state; embedding].
        swaps_rope_layout: pairs (0, 1), (2, 3) ... instead of halves, or the other way round.
        rope: another rope; the draft's own when None.
        embedding: whose is used; shuffled are the rows of another vocabulary.
        head: whose is used: the target's whole one without ``d2t``, its first Vd rows, its rows by ``d2t``.
        vocabulary: how draft ids become target ids: by ``d2t``; not at all; the offset taken for the id; the id of
            ``d2t`` added to the draft id once more; by another file's map.

    The round:

        first_row_lag: the drafts of a root start from the draft row so many rows before the last one.
        loop: how the passes of the draft loop follow one another.
        no_drafts_from: roots from this token index on get no draft accepted: the draft's context ends there.
        keeps_own_rows: the rows of accepted drafts stay as the draft loop made them, from its own states.
        tree: other tree settings; the asked ones when None.
        rule: another acceptance rule; the asked one when None.
        matches_draws: drafts are sampled, and one is kept if it is the token that the target draws.
        as_engine_reads: the draft as an engine loads its files.

    No fault, but another device or dtype:

        noise: every state and every output of the draft is a little off, channel by channel, after this seed; 0: none.
    """

    streams: tuple[Stream, ...] | None = None
    zeroed: tuple[int, ...] = ()
    rounding: Literal["", "int8", "fp8"] = ""
    rotated: bool = False
    state_lag: int = 0
    token_lag: int = 0
    wrong_token: WrongToken = ""
    chunk: int = 0
    cached_share: float = 0.0
    window: int | None = None

    bypasses_fc: bool = False
    final_norm: FinalNorm | None = None
    norm_before_residual: bool | None = None
    double_norm: bool | None = None
    fc_norm: bool | None = None
    norm_before_fc: bool | None = None
    swaps_inputs: bool = False
    swaps_rope_layout: bool = False
    rope: RopeConfig | None = None
    embedding: Embedding = "draft"
    head: Head = "draft"
    vocabulary: Vocabulary = "d2t"

    first_row_lag: int = 0
    loop: DraftLoop = DraftLoop()
    no_drafts_from: int | None = None
    keeps_own_rows: bool = False
    tree: TreeConfig | None = None
    rule: AcceptanceRule | None = None
    matches_draws: bool = False
    as_engine_reads: bool = False

    noise: int = 0

    def turned(self) -> dict[str, Any]:
        """The knobs that are not at their default."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def and_also(self, other: Wiring) -> Wiring | None:
        """Both at once; None if they turn a common knob, or knobs that exclude each other."""
        mine, its = self.turned(), other.turned()
        if mine.keys() & its.keys() or self.as_engine_reads or other.as_engine_reads:
            return None
        both = replace(self, **its)
        return None if both._contradicts_itself() else both

    def prefix_only(self) -> Wiring:
        """What decides on the committed rows: two wirings that are equal here share them."""
        right = Wiring()
        return replace(
            self,
            head=right.head,
            vocabulary=right.vocabulary,
            first_row_lag=right.first_row_lag,
            loop=right.loop,
            no_drafts_from=right.no_drafts_from,
            keeps_own_rows=right.keeps_own_rows,
            tree=right.tree,
            rule=right.rule,
            matches_draws=right.matches_draws,
        )

    def _contradicts_itself(self) -> bool:
        """A bypassed fc leaves nothing of the streams and of the norms before it; a target's head has no d2t."""
        before_fc = self.zeroed or self.fc_norm is not None or self.norm_before_fc is not None
        no_d2t = self.head == "target" and self.vocabulary != "d2t"
        both_of_cache = bool(self.cached_share and self.wrong_token)
        # Rows of accepted drafts are kept one by one, in a chain whose every row is seen.
        other_rule = self.rule or self.matches_draws
        own = self.keeps_own_rows and (self.window is not None or self.first_row_lag or self.tree or other_rule)
        return bool(
            (self.bypasses_fc and before_fc) or no_d2t or both_of_cache or own or (self.rule and self.matches_draws)
        )

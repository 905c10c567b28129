"""One dumped sequence as a trace holds it: cut to whole rows, states at their capture points, final state normed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.checks import (
    PromptsByPrefix,
    check_argmax,
    check_embedding,
    check_values,
    prompt_length,
    refuse_sequence,
    separated,
    whole,
)
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.target_head import TargetHead
from eagle3ref.trace import RecordedSequence

FinalState = Literal["normed", "raw", "drop"]
_LAST_DROPPED = "the last token has no state, as a server never runs it; it is dropped"
_FINAL_MISSING = "no final state was dumped, so it is not known which tokens are the target's first choices"
_FINAL_UNKNOWN = "the final state is left out: whether it is behind the norm, only the target's norm weight can tell"
_FINAL_RAW = "the final state is left out: it is before the norm, and the norm's weight is not at hand"
_FINAL_NORMED_NOW = "the final state was dumped before the norm; the target's norm was applied to it"
_FINAL_CONTRADICTED = "the format writes the final state before the norm, but these rows are behind it already"


class Converter:
    """Turns the sequences of one dump into those of a trace.

    Args:
        dump: where they are.
        points: capture point of every state, in the order of the dump.
        config: of the target.
        head: of the target; None when its weights are not at hand.
        prompts: where a prompt ends, if somebody says.
        final_state: what the caller says of it; None to find out.
    """

    def __init__(
        self,
        dump: Dump,
        points: tuple[int, ...],
        config: TargetConfig,
        head: TargetHead | None,
        prompts: PromptsByPrefix,
        final_state: FinalState | None,
    ) -> None:
        self.dump, self.points, self.config, self.head = dump, points, config, head
        self.prompts, self.final_state = prompts, final_state
        self.remarks: Counter[str] = Counter()

    def check(self, sequence_id: str) -> RecordedSequence:
        """The sequence without scores, every value of it looked at; what was done to it is counted in ``remarks``.

        Raises:
            Eagle3RefError: it is damaged.
        """
        dumped, dropped_last = whole(separated(self.prompts.with_tokens(self.dump.load(sequence_id)), self.config))
        tokens = dumped.tokens
        assert tokens is not None  # whole() sees to it
        states, final = self._states_at_points(dumped)
        check_values(
            sequence_id, self.config, dumped.states | ({} if final is None else {"the final state": final}), tokens
        )
        if self.head is not None and self.head.embedding is not None and 0 in states:
            check_embedding(sequence_id, states[0], tokens, self.head.embedding)
        final, remark = self._final_state(dumped, final)
        sequence = RecordedSequence(
            id=sequence_id,
            tokens=tokens,
            prompt_length=prompt_length(dumped, tokens, self.prompts),
            aux_hidden_states=states,
            final_hidden_state=final,
        )
        self.remarks.update([_LAST_DROPPED] * dropped_last + [remark] * bool(remark))
        return sequence

    def load(self, sequence_id: str) -> RecordedSequence:
        """The whole sequence, with the target's first choices where its head is at hand.

        Raises:
            Eagle3RefError: it is damaged, or its rows stand one position off.
        """
        sequence = self.check(sequence_id)
        if self.head is None or sequence.final_hidden_state is None:
            return sequence
        scores = self.head.score(sequence.final_hidden_state, sequence.tokens)
        check_argmax(sequence, scores.argmax)
        return replace(sequence, argmax=scores.argmax, logprob_gap=scores.logprob_gap)

    def _states_at_points(self, dumped: DumpedSequence) -> tuple[dict[int, Tensor], Tensor | None]:
        """Capture point -> [T, C] in ascending order, and the final state."""
        states, final = list(dumped.states.values()), dumped.final
        if len(self.points) == len(states) + 1 and final is not None and dumped.final_is_normed is False:
            # Somebody who names one layer more dumped no final state: what was taken for it is a layer as well.
            states, final = [*states, final], None
        if len(self.points) != len(states):
            found = f"{len(states)} states ({', '.join(dumped.states)})"
            expected = f"{len(self.points)}, one for each of the capture points {self.points}"
            refuse_sequence(dumped.id, found, expected, "Name one capture point for each state: --capture-points.")
        return dict(sorted(zip(self.points, states, strict=True))), final

    def _final_state(self, dumped: DumpedSequence, final: Tensor | None) -> tuple[Tensor | None, str]:
        """It, behind the norm, and what there is to say of it."""
        if final is None or self.final_state == "drop":
            return None, "" if self.final_state == "drop" else _FINAL_MISSING
        claimed, measured = dumped.final_is_normed, None if self.head is None else self.head.is_normed(final)
        if self.final_state is not None:
            normed: bool | None = self.final_state == "normed"
        elif measured is False and claimed:
            refuse_sequence(
                dumped.id,
                "a final state whose size is not that of rows behind this target's norm",
                f"rows behind the norm, which {self.dump.format} writes",
                "Check that dump and target belong together; --final-state raw says that the norm is missing, normed "
                "that it is not, and drop leaves the state out.",
            )
        else:
            normed = claimed if measured is None else measured
        if normed is None:
            return None, _FINAL_UNKNOWN
        if normed:
            return final, _FINAL_CONTRADICTED if claimed is False and self.final_state is None else ""
        applied = None if self.head is None else self.head.normed(final)
        return applied, _FINAL_RAW if applied is None else _FINAL_NORMED_NOW


def dtype_name(sequence: RecordedSequence) -> str:
    """The dtype of its states, as a trace header spells it.

    Raises:
        Eagle3RefError: they have several.
    """
    states = list(sequence.aux_hidden_states.values())
    states += [] if sequence.final_hidden_state is None else [sequence.final_hidden_state]
    dtypes = sorted({str(state.dtype).removeprefix("torch.") for state in states})
    allowed = [
        str(dtype).removeprefix("torch.") for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    ]
    if len(dtypes) > 1 or dtypes[0] not in allowed:
        refuse_sequence(sequence.id, f"states in {' and '.join(dtypes)}", f"one of {', '.join(allowed)} for all")
    return dtypes[0]

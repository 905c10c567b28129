"""What every reader makes of a dump: sequences by id, loaded one at a time, and what is believed of their states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eagle3ref.errors import Eagle3RefError


@dataclass(frozen=True, eq=False)
class DumpedSequence:
    """One sequence of a dump, its rows as the producer wrote them.

    Args:
        id: unique in the dump.
        tokens: int64 [T], prompt and answer; None when the dump does not hold them.
        prompt_length: how many of them are the prompt; None when the dump does not say.
        states: label -> [R, C], in the order of the dump; the labels are the producer's own, or ``state_0``, … .
        first_row: the token that row 0 of every state belongs to; above 0 when a cached prefix is missing.
        final: [R, C], the state behind the last layer.
        final_is_normed: whether the final norm was applied to it; None when the format does not tell.
    """

    id: str
    tokens: Tensor | None
    prompt_length: int | None
    states: dict[str, Tensor]
    first_row: int = 0
    final: Tensor | None = None
    final_is_normed: bool | None = None


@dataclass(frozen=True, eq=False)
class Dump:
    """Hidden states that somebody else's engine or training pipeline wrote; nothing of a sequence is read before use.

    Args:
        path: the file or folder.
        format: ``specforge``, ``speculators``, … : the keys of ``FORMATS``.
        ids: of the sequences, in the order of the dump.
        load: reads the sequence of an id; raises ``Eagle3RefError`` for a damaged file.
        capture_points: what the reader believes of the states, one for each in their order, counted as everywhere
            here: ``i`` is the residual stream entering layer ``i``. None when nothing speaks for any.
        reason: why, in one sentence.
        notes: what else a user should know of the format: what was taken as what, what is not known.
        engine: who wrote the dump, as well as it is known.
    """

    path: Path
    format: str
    ids: tuple[str, ...]
    load: Callable[[str], DumpedSequence]
    capture_points: tuple[int, ...] | None
    reason: str
    notes: tuple[str, ...] = ()
    engine: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[DumpedSequence]:
        return map(self.load, self.ids)

    def sequence(self, sequence_id: str) -> DumpedSequence:
        """The sequence of that id.

        Raises:
            Eagle3RefError: no such sequence, or a damaged file.
        """
        if sequence_id in self.ids:
            return self.load(sequence_id)
        raise Eagle3RefError(
            f"reading the dump {self.path}",
            found=f"no sequence {sequence_id!r} among {len(self)}",
            expected=f"an id such as {', '.join(map(repr, self.ids[:3]))}",
            action="Dump.ids lists them all.",
        )

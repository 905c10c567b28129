"""Forwards of a simulated server (chunks, cached prefixes, drafted chains) put back in the order of the tokens."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ref.dumps.sglang_parts import Part
from eagle3ref.dumps.sglang_rows import Placed, place_rows
from eagle3ref.trace import Prompt

WRONG = -1.0  # the state of a rejected draft; that of the token at position i is i


class Simulated:
    """What a server computes for one request, and what a patch sees of it.

    Tokens of the answer are odd, drafts that are rejected even, and one higher than the right token.
    """

    def __init__(
        self, draw: st.DrawFn, *, drafts: bool, positions: bool, ids: bool = True, unique: bool = False
    ) -> None:
        odd = st.integers(0, 20).map(lambda i: 2 * i + 1)
        tokens = draw(st.lists(odd, min_size=3, max_size=14, unique=unique))
        self.tokens = torch.tensor(tokens)
        self.prompt_length = draw(st.integers(1, len(tokens) - 2))
        self.cached = draw(st.integers(0, self.prompt_length - 1))
        self._positions, self._ids = positions, ids
        self.parts: list[Part] = []
        chunk = draw(st.integers(1, 5))
        for start in range(self.cached, self.prompt_length, chunk):
            self._forward(start, list(range(start, min(start + chunk, self.prompt_length))))
        root = self.prompt_length
        while root < len(tokens) - 1:
            proposed = draw(st.integers(0, 3)) if drafts else 0
            accepted = draw(st.integers(0, min(proposed, len(tokens) - 2 - root)))
            right = list(range(root, root + accepted + 1))
            self._forward(root, right + [None] * (proposed - accepted))
            root += accepted + 1

    def _forward(self, start: int, rows: list[int | None]) -> None:
        """A row for each position, of the token there, or of a draft that is rejected (None)."""
        known = dict(enumerate(self.tokens.tolist()))
        ids = [known.get(start + i, 0) + (row is None) for i, row in enumerate(rows)]
        states = torch.tensor([[WRONG if row is None else float(row)] for row in rows])
        positions = torch.arange(start, start + len(rows))
        name = f"forward_{len(self.parts)}"
        kept_ids = torch.tensor(ids) if self._ids else None
        self.parts.append(Part(name, {"aux_0": states}, None, kept_ids, positions if self._positions else None, False))

    def prompt(self, *, answered: bool) -> Prompt:
        """The answer ends one token behind the last one that was run."""
        answer = self.tokens[self.prompt_length :] if answered else None
        return Prompt("r", self.tokens[: self.prompt_length], answer)


def rows_of(placed: Placed) -> list[float]:
    parts = zip(placed.parts, placed.kept, strict=True)
    return [float(row) for part, number in parts for row in part.states["aux_0"][:number, 0]]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_positions_leave_the_rows_of_the_text(data: st.DataObject) -> None:
    """Would catch a rejected draft's row, a token's row twice or not at all, whatever the order of the names."""
    server = data.draw(st.composite(lambda draw: Simulated(draw, drafts=True, positions=True))())
    shuffled = data.draw(st.permutations(server.parts))
    placed = place_rows(list(shuffled), server.prompt(answered=True), "testing")
    assert placed.tokens is not None
    assert torch.equal(placed.tokens, server.tokens)
    assert placed.first_row == server.cached
    rows = rows_of(placed)
    assert WRONG not in rows
    assert rows == [float(i) for i in range(server.cached, len(server.tokens) - 1)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_without_the_answer_only_sure_rows_are_kept(data: st.DataObject) -> None:
    """Would catch a draft of the last round that passes for text; up to its root all are known."""
    server = data.draw(st.composite(lambda draw: Simulated(draw, drafts=True, positions=True))())
    placed = place_rows(server.parts, server.prompt(answered=False), "testing")
    rows = rows_of(placed)
    last = server.parts[-1].positions
    assert last is not None
    assert rows == [float(i) for i in range(server.cached, int(last[0]) + 1)]
    assert placed.tokens is not None
    assert torch.equal(placed.tokens, server.tokens[: int(last[0]) + 1])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_without_positions_rows_end_with_the_text(data: st.DataObject, ids: bool) -> None:
    """Would catch rows that are given to other tokens where a prefix was cached."""
    server = data.draw(st.composite(lambda draw: Simulated(draw, drafts=False, positions=False, ids=ids))())
    placed = place_rows(server.parts, server.prompt(answered=True), "testing")
    assert placed.first_row == server.cached
    assert rows_of(placed) == [float(i) for i in range(server.cached, len(server.tokens) - 1)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_token_ids_alone_find_the_cached_prefix(data: st.DataObject) -> None:
    """Without positions and answer the ids decide, wherever they can: here no token comes twice."""
    server = data.draw(st.composite(lambda draw: Simulated(draw, drafts=False, positions=False, unique=True))())
    placed = place_rows(server.parts, server.prompt(answered=False), "testing")
    assert placed.first_row == server.cached
    assert placed.tokens is not None
    assert torch.equal(placed.tokens, server.tokens[:-1])

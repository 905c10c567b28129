"""What stands in several lines: the protocol of its readers, and how far a block reaches."""

from __future__ import annotations

from typing import Protocol

from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import NotAcceptance, Reading

Statements = list[Reading | NotAcceptance]


class BlockReader(Protocol):
    """Collects the lines of one kind of block; other lines may stand between them.

    Attributes:
        reach: that many foreign lines end a block.
        last_line: number of the last line that was taken; 0 if no block is open.
    """

    reach: int
    last_line: int

    def feed(self, line: Line) -> Statements | None:
        """None if the line is none of this block's; else what ended because of it, mostly nothing."""

    def finish(self) -> Statements:
        """What the open block says; it is closed."""

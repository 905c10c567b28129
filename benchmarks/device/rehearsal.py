"""A stand-in for a CUDA graph, so that what surrounds one runs without a GPU. It proves nothing about graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from unittest.mock import patch

from eagle3ref.config import TreeConfig
from eagle3ref.cuda_graph import Drafted, GraphedDraftLoop, LoopStart, StaticDraftLoop, capture
from eagle3ref.draft import Eagle3Draft
from eagle3ref.kernels import Ops
from eagle3ref.nn import Rows


class RehearsedGraph:
    """Runs the loop again on the tensors that it was made with, and writes the results where they lay, as a graph."""

    def __init__(self, run: Callable[[], Drafted]) -> None:
        self._run, self.drafted = run, run()

    def replay(self) -> None:
        """Once more."""
        for old, new in zip(self.drafted, self._run(), strict=True):
            for one in fields(new):
                getattr(old, one.name).copy_(getattr(new, one.name))


def graphed_loop(
    draft: Eagle3Draft, tree: TreeConfig, buckets: tuple[int, ...], max_prefix: int, ops: Ops
) -> GraphedDraftLoop:
    """A ``GraphedDraftLoop`` of stand-ins, on any device."""

    def captured(
        loop: StaticDraftLoop, start: LoopStart, prefix: list[Rows], _: object
    ) -> tuple[RehearsedGraph, Drafted]:
        graph = RehearsedGraph(lambda: loop(start, prefix))
        return graph, graph.drafted

    with patch.object(capture, "captured", captured):
        return GraphedDraftLoop(draft, StaticDraftLoop(draft, tree, ops), buckets, max_prefix)

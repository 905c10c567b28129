"""Capture of the draft loop as CUDA graphs, one for each batch bucket, and their replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NoReturn

import torch

from eagle3ref.config import TreeConfig
from eagle3ref.cuda_graph.buffers import cut, fill, first_groups, prefix_buffers, smallest_bucket, start_buffers
from eagle3ref.cuda_graph.loop import Drafted, LoopStart, StaticDraftLoop
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import Ops
from eagle3ref.nn import Rows

_WARM_UPS = 3  # kernels are compiled and libraries set up before a capture, which must not do either


class GraphedDraftLoop:
    """The draft loop as CUDA graphs that share one memory pool. Made by ``capture_draft_loop``.

    A graph reads the draft's weights and ``prefix`` where they lay when it was captured. Weights that are overwritten
    in place count from the next call on; weights that were moved are noticed and refused.

    Attributes:
        tree: the tree's shape.
        batch_buckets: batch sizes that have a graph, ascending.
        prefix: per layer, the committed draft rows [largest bucket, max_prefix, ...] that the graphs read. Write row i
            of a sequence's prefix to ``[sequence, i]``; what lies behind its length is not read.
    """

    def __init__(self, draft: Eagle3Draft, loop: StaticDraftLoop, buckets: tuple[int, ...], max_prefix: int) -> None:
        self.tree, self.batch_buckets = loop.tree, buckets
        self.prefix = prefix_buffers(draft, buckets[-1], max_prefix)
        self._draft, self._addresses = draft, _addresses(draft)
        self._loop = loop  # graphs read its constants and its ropes' frequencies too: memory that must not be freed
        self._start = start_buffers(draft, buckets[-1], loop.tree.topk)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Drafted]] = {}
        largest: torch.cuda.CUDAGraph | None = None
        for bucket in reversed(buckets):  # the largest first: the others fit into what it leaves of the pool
            start, prefix = first_groups(self._start, bucket), [_cut_rows(rows, bucket) for rows in self.prefix]
            self._graphs[bucket] = captured(loop, start, prefix, largest)
            largest = self._graphs[buckets[-1]][0]

    def __call__(self, start: LoopStart) -> Drafted:
        """One round of B sequences, padded to the smallest bucket that holds them.

        The host copies the inputs and starts one graph; nothing waits for the device.

        Args:
            start: of B sequences; sequence b reads ``prefix[layer][b]``.

        Returns:
            Views of the first B rows of the graph's own results. The next call overwrites them, whatever its bucket:
            the graphs share their memory.

        Raises:
            Eagle3RefError: more sequences than the largest bucket, inputs of another shape, dtype or device than those
                that were captured, or weights that were moved since then.
        """
        batch = len(start.state)
        bucket = smallest_bucket(self.batch_buckets, batch)
        if _addresses(self._draft) != self._addresses:
            _refuse("weights that lie elsewhere now", "those that were captured", "Capture again after moving weights.")
        fill(first_groups(self._start, bucket), start)
        graph, drafted = self._graphs[bucket]
        graph.replay()
        return cut(drafted, batch)


def capture_draft_loop(
    draft: Eagle3Draft, tree: TreeConfig, batch_buckets: Sequence[int], max_prefix: int, ops: Ops
) -> GraphedDraftLoop:
    """Capture the whole draft loop, from the first level of the candidates to the finished tree.

    Replay gives the bits of ``StaticDraftLoop`` on the same padded inputs: they are the same kernels.

    Args:
        draft: on a CUDA device.
        tree: num_steps, topk, num_draft_tokens and the tree's KV mode.
        batch_buckets: batch sizes to capture, e.g. ``(1, 2, 4, 8)``.
        max_prefix: committed draft rows that a sequence may have at most.
        ops: ``get_ops("triton")``. The "torch" operations look at results on the host, so no graph can hold them.

    Raises:
        Eagle3RefError: a draft that is not on a CUDA device (nothing is run without a graph instead), buckets or a
            prefix that are not positive, or what ``StaticDraftLoop`` refuses.
    """
    if min(batch_buckets, default=0) < 1 or max_prefix < 1:
        found = f"batch_buckets {tuple(batch_buckets)} and max_prefix {max_prefix}"
        _refuse(found, "at least one bucket, all of them and max_prefix 1 or more", "Correct the sizes.")
    if ops.name == "torch":
        action = 'Pass get_ops("triton").'
        _refuse("the torch operations", "operations that never look at a result on the host", action)
    device = draft.target_ids.device
    if device.type != "cuda":
        _refuse(
            f"a draft on {device}", "a CUDA device", "Move the draft there, or call StaticDraftLoop without a graph."
        )
    loop = StaticDraftLoop(draft, tree, ops)
    return GraphedDraftLoop(draft, loop, tuple(sorted(set(batch_buckets))), max_prefix)


def captured(
    loop: StaticDraftLoop, start: LoopStart, prefix: list[Rows], sharing: torch.cuda.CUDAGraph | None
) -> tuple[torch.cuda.CUDAGraph, Drafted]:
    """A graph of one round on these very tensors, and the tensors that its replay writes.

    Args:
        loop: what is captured.
        start: of a bucket.
        prefix: per layer, of the same sequences.
        sharing: a graph whose memory this one may use between its first operation and its last.
    """
    with torch.cuda.device(start.state.device):
        side = _capture_stream(start.state.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                loop(start, prefix)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=None if sharing is None else sharing.pool(), stream=side):
            drafted = loop(start, prefix)
    return graph, drafted


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures on a device: cuBLAS keeps a workspace of its own for each stream, for good."""
    return torch.cuda.Stream(device)


def _cut_rows(rows: Rows, batch: int) -> Rows:
    return Rows(rows.first[:batch], rows.second[:batch])


def _addresses(draft: Eagle3Draft) -> list[int]:
    return [tensor.data_ptr() for tensor in (*draft.parameters(), draft.target_ids)]


def _refuse(found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError("running the draft loop as a CUDA graph", found=found, expected=expected, action=action)

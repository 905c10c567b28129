"""The share of this machine's rate of matrix products that draft forwards reach."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import torch
from peers.timing import seconds
from peers.workloads import Workload
from torch import nn

import eagle3ref as e3
from eagle3ref.positions.committed import CommittedRows
from eagle3ref.positions.fast_draft import fast_twin

ROWS = 2048
IN_A_ROW = 32  # products by one reading of the clock, which is too coarse for one small product
SEQUENCES = 4


@torch.inference_mode()
def share(workload: Workload, repeats: int) -> dict[str, Any]:
    """Flops by second of processor, of the draft's own matrices; attention and everything else counts as time only.

    The ceiling is the fastest of the draft's matrices alone, ``ROWS`` rows at once, by either library.
    """
    twin = fast_twin(workload.draft)
    sequences = list(workload.first(SEQUENCES))
    committed = functools.partial(CommittedRows.of, sequences, twin)
    draft = workload.draft
    products = [module for module in draft.modules() if isinstance(module, nn.Linear) and module is not draft.lm_head]
    flops = 2 * committed().num_rows * sum(product.weight.numel() for product in products)
    forward, ceiling = [], []
    for _ in range(repeats):
        forward.append(flops / seconds(committed).cpu)
        ceiling.append(max(product_rate(one) for one in (draft, twin)))
    reached, possible = statistics.median(forward), statistics.median(ceiling)
    return {
        "pair": workload.name,
        "forward_gflops": reached / 1e9,
        "product_gflops": possible / 1e9,
        "share": reached / possible,
    }


def product_rate(draft: e3.Eagle3Draft) -> float:
    """Flops by second of processor of the fastest of the draft's matrices, the head left out."""
    layer = draft.layers[0]
    rates = []
    for product in (draft.fc, layer.mlp.gate_proj, layer.mlp.down_proj):
        rows, columns = product.weight.shape
        x = torch.randn(ROWS, columns)
        product(x)
        taken = min(seconds(functools.partial(again, product, x)).cpu for _ in range(3))
        rates.append(IN_A_ROW * 2 * ROWS * rows * columns / taken)
    return max(rates)


def again(product: nn.Module, x: torch.Tensor) -> None:
    for _ in range(IN_A_ROW):
        product(x)

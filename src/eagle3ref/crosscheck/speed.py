"""What a server's tokens per second say at the acceptance length that it printed beside them."""

from __future__ import annotations

import numpy as np

from eagle3ref.config import TreeConfig
from eagle3ref.servers import Evidence
from eagle3ref.speedup import MeasuredRound, Span, measured_round


def measured_speed(
    evidence: Evidence, tree: TreeConfig, baseline_tokens_per_second: float | None
) -> MeasuredRound | None:
    """From the lines that give both; None without any.

    Lines are taken together: the mean of their throughputs, within the least and the most of them. The number of
    requests is taken as theirs if all lines ran the same number, and those of one request are preferred.

    Raises:
        Eagle3RefError: a baseline that is not positive.
    """
    lines = [w for w in evidence.windows if w.gen_throughput is not None and w.length_with_bonus is not None]
    lines = [line for line in lines if line.gen_throughput is not None and line.gen_throughput.value > 0]
    fewest = min((line.running_requests or 1 for line in lines), default=1)
    lines = [line for line in lines if (line.running_requests or 1) == fewest]
    if not lines:
        return None
    speeds = [line.gen_throughput.value for line in lines if line.gen_throughput is not None]
    lengths = [length for line in lines if (length := line.length_with_bonus) is not None]
    graphs = {line.cuda_graph for line in lines}
    return measured_round(
        Span(
            float(np.mean([length.value for length in lengths])),
            min(length.low for length in lengths),
            max(length.high for length in lengths),
        ),
        Span(float(np.mean(speeds)), min(speeds), max(speeds)),
        baseline_tokens_per_second=baseline_tokens_per_second,
        batch_size=max(1, fewest),
        num_steps=tree.num_steps,
        cuda_graph=graphs.pop() if len(graphs) == 1 else None,
    )

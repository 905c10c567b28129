"""What share of the machine's matrix-product rate the draft forwards of a position replay reach, part by part.

    python benchmarks/draft_forward_rate.py

Everything is measured in CPU seconds of this process, which other processes on the machine disturb least, in
interleaved repeats of one run; the best of each counts. The rate of the machine is that of the draft's own matrices at
full batches, of which the fastest counts, by the faster of the libraries that PyTorch has here (MKL, and oneDNN through
``positions/onednn.py``). A multiplication and an addition are two operations.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from mid_size import write_draft
from torch import Tensor, nn

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft
from eagle3ref.draft import best_next as reference_best_next
from eagle3ref.nn.packed import PackedPrefix
from eagle3ref.positions.committed import CommittedRows, rows_at_once
from eagle3ref.positions.fast_draft import fast_twin
from eagle3ref.positions.head import best_next, is_first
from eagle3ref.replay.batch import Batch
from eagle3ref.replay.feed import Feed
from eagle3ref.trace import RecordedSequence

PARTS = {
    "fc": ("fc",),
    "projections": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "head": ("lm_head",),
}
Spent = dict[str, tuple[float, float]]
"""Part -> CPU seconds and operations."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "threads": arguments.threads,
        "drafts": {},
    }
    for name, draft, (count, length, prompt) in drafts():
        measured = measure(draft, random_sequences(draft, count, length, prompt), arguments.repeats)
        results["drafts"][name] = measured
        print(table(name, measured), flush=True)
    path = Path(__file__).parent / "results" / "draft_forward_rate_cpu.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1, help="one is steadiest where others use the machine too")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def drafts() -> Iterator[tuple[str, Eagle3Draft, tuple[int, int, int]]]:
    """Name, fp32 draft, and how many sequences of which length and prompt it is given."""
    with tempfile.TemporaryDirectory() as folder:
        yield "mid-size", e3.load_draft(write_draft(Path(folder) / "draft"), dtype=torch.float32), (6, 512, 16)
    target = e3.load_target(e3.nano.target_path(), dtype=torch.float32)
    yield "nano", e3.load_draft(e3.nano.draft_path(), target=target, dtype=torch.float32), (64, 192, 64)


def random_sequences(draft: Eagle3Draft, count: int, length: int, prompt: int) -> list[RecordedSequence]:
    """Rates do not depend on what is in them."""
    generator = torch.Generator().manual_seed(0)
    config = draft.config
    return [
        RecordedSequence(
            str(i),
            torch.randint(config.vocab_size, (length,), generator=generator),
            prompt,
            {p: torch.randn(length, config.target_hidden_size, generator=generator) for p in draft.capture_points},
        )
        for i in range(count)
    ]


@torch.inference_mode()
def measure(draft: Eagle3Draft, sequences: list[RecordedSequence], repeats: int) -> dict[str, Any]:
    """The best of each arm over the repeats: rates in GFLOP/s of CPU time, times in microseconds a row."""
    fast = fast_twin(draft)
    rows = CommittedRows.of(sequences, fast)
    arms = {
        "committed rows": lambda: CommittedRows.of(sequences, fast),
        "branch rows": branch_rows(fast, rows),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    parts: dict[str, list[tuple[float, Spent]]] = defaultdict(list)
    heads = head_arms(draft, fast, rows)
    for _ in range(repeats):
        seconds["product"].append(min(fastest_product(one, rows_at_once(one)) for one in (draft, fast)))
        for name, arm in arms.items():
            with watched(fast) as spent:
                total = cpu_seconds(arm)
            parts[name].append((total, dict(spent)))
        seconds["reference committed rows"].append(
            cpu_seconds(lambda: Batch.of(Feed(sequences, draft.capture_points, torch.device("cpu")), draft))
        )
        for name, arm in heads.items():
            seconds[name].append(cpu_seconds(arm))
    best = {name: min(values) for name, values in seconds.items()}
    rate = 1 / best["product"]
    count, committed = len(rows.state), min(total for total, _ in parts["committed rows"])
    return {
        "matmul_gflops": rate / 1e9,
        "arms": {name: shares(min(values, key=lambda value: value[0]), rate) for name, values in parts.items()},
        "committed_rows_speedup_over_reference": best["reference committed rows"] / committed,
        "head_us_per_row": {name: 1e6 * best[name] / count for name in heads},
    }


def shares(measured: tuple[float, Spent], rate: float) -> dict[str, Any]:
    """Of the whole and of its parts: the share of the machine's rate, and of the time.

    What is left over is norms, rope, sums, reading and calls.
    """
    total, spent = measured
    operations = sum(part[1] for part in spent.values())
    left = total - sum(part[0] for part in spent.values())
    return {
        "share_of_matmul_rate": operations / total / rate,
        "parts": {
            name: {"share_of_matmul_rate": done / took / rate, "share_of_time": took / total}
            for name, (took, done) in spent.items()
        }
        | {"the rest": {"share_of_time": left / total}},
    }


def fastest_product(draft: Eagle3Draft, num_rows: int) -> float:
    """CPU seconds for one operation, over the draft's matrices of which the best one counts."""
    linears = {(m.out_features, m.in_features): m for m in draft.modules() if isinstance(m, nn.Linear)}
    per_operation = []
    for (outputs, inputs), linear in linears.items():
        x = torch.randn(num_rows, inputs)
        took = min(cpu_seconds(lambda x=x, linear=linear: linear(x)) for _ in range(3))
        per_operation.append(took / (2 * num_rows * inputs * outputs))
    return min(per_operation)


def branch_rows(draft: Eagle3Draft, rows: CommittedRows) -> Callable[[], None]:
    """One pass of the draft loop, behind every root."""
    sequence, root = rows.roots()
    state, _ = rows.first_rows(sequence, root)
    tokens, mask = rows.recorded(sequence, root + 1), torch.ones(1, 1, 1, 1, dtype=torch.bool)

    def run() -> None:
        for some in torch.arange(len(root)).split(rows_at_once(draft)):
            given = (part[some][None, :, None] for part in (state, tokens, root))
            output = draft(*given, mask=mask, prefix=rows.prefixes(sequence[some], root[some]))
            draft.logits(output.normed)

    return run


def head_arms(draft: Eagle3Draft, fast: Eagle3Draft, rows: CommittedRows) -> dict[str, Callable[[], object]]:
    """The head's answers on the rows that lead to a root. Half of the tokens asked about are the first choice."""
    normed = rows.normed
    tokens = reference_best_next(draft, normed, 1)[1][:, 0]
    tokens[::2] = tokens.roll(1)[::2]

    def logits() -> None:
        for some in normed.split(rows_at_once(draft)):
            draft.logits(some)

    return {
        "logits alone": logits,
        "reference best_next, 4": lambda: reference_best_next(draft, normed, 4),
        "best_next, 4": lambda: best_next(fast, normed, 4),
        "reference best_next, 1": lambda: reference_best_next(draft, normed, 1),
        "is_first": lambda: is_first(fast, normed, tokens),
    }


@contextmanager
def watched(draft: Eagle3Draft) -> Iterator[Spent]:
    """CPU seconds and operations of the draft's matrices and of the packed attention while the context is open."""
    spent: Spent = defaultdict(lambda: (0.0, 0.0))
    started: list[float] = []

    def add(part: str, operations: float) -> None:
        took, done = spent[part]
        spent[part] = (took + time.process_time() - started.pop(), done + operations)

    handles = []
    for part, names in PARTS.items():
        for name, module in draft.named_modules():
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] in names:
                handles.append(module.register_forward_pre_hook(lambda *_: started.append(time.process_time())))
                handles.append(
                    module.register_forward_hook(
                        lambda m, x, _, part=part: add(part, 2 * x[0].numel() * m.out_features)
                    )
                )
    attend = PackedPrefix.attend

    def timed(self: PackedPrefix, query: Tensor, *others: Any) -> Tensor:
        started.append(time.process_time())
        output = attend(self, query, *others)
        keys = int(self.groups.lengths.sum()) * query.shape[2] * query.shape[3]
        add("attention", 2 * keys * (query.shape[-1] + output.shape[-1]))
        return output

    try:
        with patch.object(PackedPrefix, "attend", timed):
            yield spent
    finally:
        for handle in handles:
            handle.remove()


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def table(name: str, measured: dict[str, Any]) -> str:
    lines = [f"{name}: products reach {measured['matmul_gflops']:.0f} GFLOP/s of CPU time; shares of that rate"]
    for arm, figures in measured["arms"].items():
        lines.append(f"  {arm}: {figures['share_of_matmul_rate']:.2f}")
        for part, its in figures["parts"].items():
            rate = f"{its['share_of_matmul_rate']:.2f}" if "share_of_matmul_rate" in its else "-"
            lines.append(f"    {part:12} {rate:>5}  {its['share_of_time']:4.0%} of the time")
    lines.append(f"  committed rows, x the reference: {measured['committed_rows_speedup_over_reference']:.2f}")
    lines += [f"  head, us a row: {arm:24} {took:7.1f}" for arm, took in measured["head_us_per_row"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

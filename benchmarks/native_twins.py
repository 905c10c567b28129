"""The compiled twins of csrc/ against the reference's eager functions: how many times faster, after they agreed.

    python benchmarks/native_twins.py

Every ratio is of the best of interleaved repeats within one process: many calls here take microseconds, and what else a
machine does only ever adds to them. The ratio of medians is recorded beside it. Nothing is written unless all results
are equal bit for bit. ``plain`` is the twin without AVX2.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagle3ref import Eagle3RefError, tree, verify
from eagle3ref.config import TreeConfig
from eagle3ref.kernels import native
from eagle3ref.positions import RowCounts, SequenceRanks, visited_positions
from eagle3ref.target import int4
from eagle3ref.tree import Candidates
from eagle3ref.tune import walk_settings

ARMS = ("eager", "plain", "avx2")


class Case(NamedTuple):
    """One operation at one size: the same work by the reference and by the twin."""

    name: str
    eager: Callable[[], Any]
    twin: Callable[[], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    try:
        native.require_built()
    except Eagle3RefError as error:
        print(error, file=sys.stderr)
        return 2
    rows = []
    for case in cases():
        if not all(map(torch.equal, tensors(case.eager()), tensors(case.twin()))):
            print(f"{case.name}: the twin differs from the reference; no timing means anything.", file=sys.stderr)
            return 1
        rows.append({"operation": case.name, **times_faster(case, arguments.repeats)})
        print("{operation:58} {avx2:7.1f} x   (plain {plain:.1f} x)".format(**rows[-1]))
    results = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "times_faster_than_eager": rows,
    }
    path = Path(__file__).parent / "results" / "native_twins_cpu.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def times_faster(case: Case, repeats: int) -> dict[str, float]:
    """Time of the reference over that of the twin, without and with AVX2."""
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    arms = {arm: case.eager if arm == "eager" else case.twin for arm in ARMS}
    # Enough calls that neither the clock nor what the arm before left in the caches matters.
    calls = {arm: max(1, int(0.002 / timed(call, 3))) for arm, call in arms.items()}
    for _ in range(repeats):
        for arm, call in arms.items():
            os.environ["EAGLE3REF_SIMD"] = arm
            seconds[arm].append(timed(call, calls[arm]))
    return {
        f"{arm}{suffix}": round(middle(seconds["eager"]) / middle(seconds[arm]), 2)
        for suffix, middle in (("", min), ("_median", statistics.median))
        for arm in ("plain", "avx2")
    }


def timed(call: Callable[[], Any], calls: int) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [torch.as_tensor(part) for part in (result if isinstance(result, tuple) else vars(result).values())]


def cases() -> list[Case]:
    return [*tree_cases(), *walk_cases(), *int4_cases()]


def tree_cases() -> list[Case]:
    """A round of one request and of 64, at SGLang's default tree and at a large one."""
    found = []
    for batch, config in [(b, t) for b in (1, 64) for t in (TreeConfig(5, 4, 16), TreeConfig(6, 8, 64))]:
        candidates, vocab_size = drafted(batch, config), 32000
        roots, size = torch.arange(batch), config.num_draft_tokens
        given = {"root_tokens": roots, "prefix_lengths": roots, "num_draft_tokens": size}
        draft = tree.build_tree(candidates, **given)
        target = draft.tokens.roll(-1, 1)
        where = f"batch {batch}, tree {config.num_steps}/{config.topk}/{size}"
        found += [
            Case(
                f"build_tree, {where}",
                lambda c=candidates, g=given: tree.build_tree(c, **g),
                lambda c=candidates, g=given: native.build_tree(c, **g),
            ),
            Case(
                f"verify_greedy, {where}",
                lambda d=draft, t=target: verify.verify_greedy(d, t),
                lambda d=draft, t=target: native.verify_greedy(d, t),
            ),
        ]
        if batch == 1:
            coins = torch.rand(batch, size), torch.rand(batch)
            probs = torch.randn(batch, size, vocab_size).softmax(-1)
            found.append(
                Case(
                    f"verify_target_only, {where}, vocabulary {vocab_size}",
                    lambda d=draft, p=probs, c=coins: verify.verify_target_only(d, p, *c),
                    lambda d=draft, p=probs, c=coins: native.verify_target_only(d, p, *c),
                )
            )
    return found


def drafted(batch: int, config: TreeConfig) -> Candidates:
    """Candidates as the draft loop makes them; every token of a sequence is another."""
    topk = config.topk

    def probs(*shape: int) -> Tensor:
        return torch.rand(*shape, topk).sort(-1, descending=True).values

    beams, flat = probs(batch), torch.arange(topk).expand(batch, topk)
    parts = [(beams, torch.full_like(flat, -1))]
    for step in range(config.num_steps - 1):
        scores, chosen = tree.extend_beams(beams, probs(batch, topk))
        parts.append((scores, flat.repeat_interleave(topk, 1)))
        beams, flat = scores.gather(1, chosen), topk + step * topk**2 + chosen
    scores, parents = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return Candidates(scores, torch.arange(parents.shape[1]).expand_as(parents).contiguous(), parents)


def walk_cases() -> list[Case]:
    """200 sequences: one walk of each, and the walks of every setting up to 8 steps and 64 tokens in some steps."""
    lengths, steps, sizes = [400 + i for i in range(200)], 8, (2, 3, 4, 8, 12, 16, 24, 32, 48, 64)
    ranks = [made_ranks(f"sequence {i}", length, steps) for i, length in enumerate(lengths)]
    most = [TreeConfig(s, 4, 2).num_candidates + 1 for s in range(1, steps + 1)]
    settings = [TreeConfig(s, 4, n) for s in range(1, steps + 1) for n in sizes if n <= most[s - 1]]
    pairs = torch.tensor([[setting.num_steps, setting.num_draft_tokens] for setting in settings])
    together, starts = torch.cat([r.ranks for r in ranks]), torch.tensor([0, *lengths]).cumsum(0)
    accepted = torch.randint(0, 4, (200, 512))
    return [
        Case(
            "visited_positions, 200 sequences of 512",
            lambda: visited_positions(accepted),
            lambda: native.visited_positions(accepted),
        ),
        Case(
            f"tally_settings, 200 sequences, {len(settings)} settings",
            lambda: walk_settings(ranks, settings),
            lambda: native.tally_settings(together, starts, pairs[:, 0], pairs[:, 1]),
        ),
    ]


def made_ranks(name: str, num_roots: int, steps: int) -> SequenceRanks:
    """Ranks that grow with depth, and end somewhere."""
    grown = torch.randint(1, 6, (num_roots, steps, steps)).cumsum(1)
    depth, last = torch.arange(steps)[:, None], torch.randint(0, steps + 1, (num_roots, 1, 1))
    there = (depth < last) & (depth <= torch.arange(steps))
    ranks = grown.where(there, 32767).to(torch.int16)
    no_rows = RowCounts(**{field.name: 0 for field in dataclasses.fields(RowCounts)})
    return SequenceRanks(name, 1, num_roots + 2, TreeConfig(steps, 4, 64), ranks, 0, num_roots + 1, no_rows)


def int4_cases() -> list[Case]:
    """An expert's matrix of Kimi-K2.5, 2048 x 7168, and 64 rows of it, which fit a cache and leave only the work."""
    found = []
    for rows in (64, 2048):
        packed, shape = torch.randint(-(2**31), 2**31, (rows, 7168 // 8)).to(torch.int32), torch.tensor([rows, 7168])
        found.append(
            Case(f"unpack_int4, {rows} x 7168", partial(int4.unpack_int4, packed), partial(native.unpack_int4, packed))
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            given = packed, (torch.rand(rows, 7168 // 32) / 100).to(dtype), shape, "of the benchmark"
            name = f"dequantize_int4, {rows} x 7168, {str(dtype).removeprefix('torch.')}"
            found.append(Case(name, partial(int4.dequantize_int4, *given), partial(native.dequantize_int4, *given)))
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Whether the fast ways are still as much faster as they were: three ratios against a frozen loop, in the same run.

    python benchmarks/guard.py              exit status 1 if one ratio has fallen by more than a quarter
    python benchmarks/guard.py --record     writes the ratios of this machine into benchmarks/results/guard.json

The frozen loop (frozen_loop.py) never changes, so a ratio changes only with the library. Processor time of one thread,
the fastest of interleaved repeats, and a second look before anything fails: what else a machine does cannot fail it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mid_size
import torch
from frozen_loop import FrozenLoop, build_trees

import eagle3ref as e3
from eagle3ref.positions import replay_positions
from eagle3ref.tree import Candidates
from eagle3ref.tune import tune

EXPECTED = Path(__file__).parent / "results" / "guard.json"
MAY_FALL = 0.25
REPEATS = 3

SIZE = mid_size.Size(256, 512, 4, 2, 1024, 512)
SEQUENCES, TOKENS = 24, 96
CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(5, 4, 16, tree_kv="ancestor")
ROOTS = 192  # trees that are built at once

Work = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", action="store_true", help="write what is measured as what is expected")
    record = parser.parse_args().record
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = comparisons(Path(folder))
        found = ratios(pairs)
        if record:
            EXPECTED.write_text(json.dumps({name: round(ratio, 2) for name, ratio in found.items()}, indent=1) + "\n")
        expected: dict[str, float] = json.loads(EXPECTED.read_text())
        if fallen(found, expected):
            found = {name: max(ratio, found[name]) for name, ratio in ratios(pairs).items()}
    for name, ratio in found.items():
        print(f"{name:28} {ratio:7.1f} x the frozen loop, {expected[name]:.1f} expected")
    for name in (slow := fallen(found, expected)):
        print(f"{name} has fallen by {1 - found[name] / expected[name]:.0%}; {MAY_FALL:.0%} may be noise, not more.")
    return 1 if slow else 0


def comparisons(folder: Path) -> dict[str, tuple[Work, Work]]:
    """By name, the frozen way and ours to the same numbers.

    Raises:
        RuntimeError: the numbers are not the same, so that no ratio means anything.
    """
    draft = e3.load_draft(mid_size.write_draft(folder / "draft", SIZE), dtype=torch.float32)
    trace = mid_size.write_trace(draft, folder / "trace", SEQUENCES, TOKENS)
    loop = FrozenLoop(draft)
    sequences = [
        (sequence.tokens, torch.cat(list(sequence.aux_hidden_states.values()), -1).float(), sequence.prompt_length)
        for sequence in trace
    ]
    candidates = random_candidates(ROOTS)
    roots = torch.zeros(ROOTS, dtype=torch.int64)

    def frozen(tree: e3.TreeConfig) -> list[list[int]]:
        return [loop.accepted(*sequence, tree) for sequence in sequences]

    def walk(tree: e3.TreeConfig) -> list[list[int]]:
        replayed = replay_positions(trace, draft, tree, positions="walk")
        return [sequence.num_accepted.tolist() for sequence in replayed.sequences]

    def surface() -> object:
        limits = {"max_num_steps": TREE.num_steps, "max_num_draft_tokens": TREE.num_draft_tokens}
        return tune(trace, draft, topks=(TREE.topk,), tree_kv=TREE.tree_kv, **limits)

    def build() -> e3.DraftTree:
        return e3.build_tree(
            candidates, root_tokens=roots, prefix_lengths=roots, num_draft_tokens=TREE.num_draft_tokens
        )

    def build_frozen() -> tuple[torch.Tensor, torch.Tensor]:
        return build_trees(candidates, TREE.num_draft_tokens)

    parents, masks = build_frozen()
    same_trees = torch.equal(parents, build().parents) and torch.equal(masks, build().tree_mask)
    if not (frozen(CHAIN) == walk(CHAIN) and frozen(TREE) == walk(TREE) and same_trees):
        raise RuntimeError("the frozen loop and the library accept other drafts or build other trees")
    return {
        f"walk of {CHAIN}": (lambda: frozen(CHAIN), lambda: walk(CHAIN)),
        f"all settings within {TREE}": (lambda: frozen(TREE), surface),
        f"{ROOTS} trees at once": (build_frozen, build),
    }


def random_candidates(batch: int) -> Candidates:
    """As a draft loop of ``TREE`` leaves them: scores that fall from parent to child."""
    generator, topk = torch.Generator().manual_seed(0), TREE.topk
    scores = [torch.rand(batch, topk, generator=generator)]
    parents = [torch.full((batch, topk), -1)]
    beams, flat = scores[0], torch.arange(topk).expand(batch, -1)
    for step in range(TREE.num_steps - 1):
        children = (beams[..., None] * torch.rand(batch, topk, topk, generator=generator)).flatten(1)
        scores.append(children)
        parents.append(flat.repeat_interleave(topk, 1))
        beams, chosen = children.topk(topk)
        flat = topk + step * topk**2 + chosen
    all_scores = torch.cat(scores, 1)
    tokens = torch.randint(SIZE.vocab_size, all_scores.shape, generator=generator)
    return Candidates(all_scores, tokens, torch.cat(parents, 1))


def ratios(pairs: dict[str, tuple[Work, Work]]) -> dict[str, float]:
    """By name, how many times faster than the frozen way ours is."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in pairs}
    for _ in range(REPEATS):
        for name, (frozen, ours) in pairs.items():
            taken[name].append((processor_seconds(frozen), processor_seconds(ours)))
    return {name: min(slow for slow, _ in times) / min(fast for _, fast in times) for name, times in taken.items()}


def processor_seconds(work: Work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def fallen(found: dict[str, float], expected: dict[str, float]) -> list[str]:
    """The names whose ratio has fallen too far."""
    return [name for name, ratio in found.items() if ratio < (1 - MAY_FALL) * expected[name]]


if __name__ == "__main__":
    sys.exit(main())

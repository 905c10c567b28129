"""How often `eagle3ref align` names what was dumped: every way to dump the wrong thing x every rounding.

    python benchmarks/align_noise.py [--draws 4]

On the nano target: capture points are drawn, the dump is made wrong in one way, its values are rounded or the weights
it was made with are. A dump is *named* if every state has its true place, its rows their true positions, and the
verdict is what it must be; it is *misnamed* if a state got a place that is not its own. What is neither, the command
says it cannot tell. Prints both counts, and writes them to results/align_noise.json.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref import nano
from eagle3ref.align import Alignment, align
from eagle3ref.align.boundary import Boundary
from eagle3ref.align.walk import walk_target
from eagle3ref.dumps import Dump, DumpedSequence
from eagle3ref.target import KimiK25Target, load_target
from eagle3ref.trace import read_prompts

NUM_TEXTS, NUM_TOKENS, NUM_STATES = 2, 32, 3
Places = list[tuple[Boundary, int]]  # of each state, its true place and how far its rows are moved


def bf16(rows: Tensor) -> Tensor:
    return rows.bfloat16().float()


def int8(rows: Tensor) -> Tensor:
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return (rows / scale).round() * scale


def noise(share: float) -> Callable[[Tensor], Tensor]:
    def add(rows: Tensor) -> Tensor:
        random = torch.randn_like(rows)
        return rows + share * random * rows.norm(dim=-1, keepdim=True) / random.norm(dim=-1, keepdim=True)

    return add


def fp8(target: KimiK25Target) -> KimiK25Target:
    """Another server's model: every matrix rounded to FP8 (E4M3) with a scale for each row."""
    other = copy.deepcopy(target)
    for parameter in other.parameters():
        if parameter.dim() == 2:
            scale = parameter.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
            parameter.data = (parameter / scale).to(torch.float8_e4m3fn).float() * scale
    return other


ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda rows: rows,
    "bf16": bf16,
    "int8": int8,
    "1 %": noise(0.01),
    "5 %": noise(0.05),
    "10 %": noise(0.1),
    "20 %": noise(0.2),
}


def wrong_dumps(num_layers: int, generator: torch.Generator) -> dict[str, Places]:
    """One dump of each family at points that are drawn."""
    drawn = torch.randperm(num_layers - 1, generator=generator)[:NUM_STATES] + 1
    points = sorted(drawn.tolist())

    def all_of(kind: str, moved: int = 0) -> Places:
        return [(Boundary(kind, point, num_layers), moved) for point in points]

    right = all_of("stream")
    return {
        "right": right,
        "wrong layers": right,
        "another order": right[::-1],
        "one layer twice": [right[0], right[0], right[2]],
        "rows one late": all_of("stream", 1),
        "rows one early": all_of("stream", -1),
        "normed": all_of("input_norm"),
        "before the addition": all_of("mlp"),
        "middle of a layer": all_of("after_attention"),
        "final state": [(Boundary("final_norm", num_layers, num_layers), 0)],
    }


def boundaries_of(target: KimiK25Target, texts: list[Tensor]) -> dict[Boundary, list[Tensor]]:
    seen: dict[Boundary, list[Tensor]] = {}
    walk_target(target, texts, lambda place, states: seen.update({place: [s.clone() for s in states]}), lambda _: None)
    return seen


def make(
    name: str,
    places: Places,
    seen: dict[Boundary, list[Tensor]],
    texts: list[Tensor],
    rounded: Callable[[Tensor], Tensor],
) -> Dump:
    sequences = {}
    for number, tokens in enumerate(texts):
        states = {}
        for index, (boundary, moved) in enumerate(places):
            rows = seen[boundary][number]
            states[f"aux_{index}"] = rounded(rows.roll(-moved, 0)[: len(rows) - abs(moved)])
        sequences[str(number)] = DumpedSequence(str(number), tokens, None, states)
    believed = sorted(boundary.layer for boundary, _ in places)
    if name == "wrong layers":
        believed = [point - 1 for point in believed]
    return Dump(Path(name), "made", tuple(sequences), sequences.__getitem__, tuple(believed), "made")


def judged(found: Alignment, name: str, places: Places) -> str:
    """``named``, ``misnamed`` or ``not told``."""
    told = [
        match.best is not None and match.boundary == boundary and match.best.place.shift.rows == moved
        for match, (boundary, moved) in zip(found.matches, places, strict=True)
    ]
    if any(match.boundary is not None and not right for match, right in zip(found.matches, told, strict=True)):
        return "misnamed"
    return "named" if all(told) and found.verdict == ("right" if name == "right" else "wrong") else "not told"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4, help="dumps of each family")
    draws = parser.parse_args().draws
    torch.manual_seed(0)
    target = load_target(nano.target_path(), dtype=torch.float32)
    assert isinstance(target, KimiK25Target)
    prompts = read_prompts(nano.prompts_path(), nano.target_path())[0]
    texts = [prompt.tokens[:NUM_TOKENS] for prompt in prompts[:NUM_TEXTS]]
    own, others = boundaries_of(target, texts), boundaries_of(fp8(target), texts)
    columns = {name: (own, rounded) for name, rounded in ROUNDINGS.items()} | {"FP8 weights": (others, bf16)}
    counts: dict[str, dict[str, dict[str, int]]] = {"named": {}, "misnamed": {}, "not told": {}}
    generator = torch.Generator().manual_seed(1)
    for _ in range(draws):
        for family, places in wrong_dumps(target.config.num_layers, generator).items():
            for table in counts.values():
                table.setdefault(family, dict.fromkeys(columns, 0))
            for column, (seen, rounded) in columns.items():
                found = align(make(family, places, seen, texts, rounded), target)
                counts[judged(found, family, places)][family][column] += 1
    for judgment in ("named", "misnamed"):
        print(f"\n{judgment}, of {draws} dumps each:")
        print(f"| {'what was dumped':20} |" + "".join(f" {column} |" for column in columns))
        print("|---" * (len(columns) + 1) + "|")
        for family, row in counts[judgment].items():
            print(f"| {family:20} |" + "".join(f" {row[column]:>{len(column)}} |" for column in columns))
    depth = target.config.num_layers
    streams = [own[Boundary("stream", layer, depth)] for layer in range(depth + 1)]
    apart = [_apart(near, far) for near, far in zip(streams[1:-1], streams[2:], strict=True)]
    changed = [_apart(mine, theirs) for mine, theirs in zip(own.values(), others.values(), strict=True)]
    print(f"\nstreams of adjacent layers are {min(apart):.2f} to {max(apart):.2f} apart (median over rows, relative);")
    print(f"FP8 weights move the same places by {min(changed):.3f} to {max(changed):.3f}.")
    result = {"torch": torch.__version__, "draws": draws, "adjacent": apart, "fp8_weights": changed, **counts}
    path = Path(__file__).parent / "results" / "align_noise.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _apart(left: list[Tensor], right: list[Tensor]) -> float:
    a, b = torch.cat(left), torch.cat(right)
    return float(((a - b).norm(dim=1) / a.norm(dim=1)).median())


if __name__ == "__main__":
    main()

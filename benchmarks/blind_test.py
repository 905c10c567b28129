"""How often is the true cause named? Servers with known faults, of which only what they say is told.

    PYTHONPATH=tests python benchmarks/blind_test.py [--prompts 8]

A live decode with no fault, one, or two writes a log and request fields (``tests/faulty_server.py``). The diagnosis
gets both, or the log alone. Nothing is drawn anew, so the table is the same on every run of one machine.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blind import (
    CHAIN,
    FAULTS,
    NEW_TOKENS,
    SOME_FAULTS,
    TREE_FAULTS,
    TREES,
    TWO_FAULTS,
    Blind,
    Told,
    run_blind,
    world_at,
)

import eagle3ref as e3

RESULTS = Path(__file__).parent / "results" / "blind_test.json"
KINDS = ("llama", "gqa", "mla")
TEMPERATURE = 0.8
Case = tuple[str, Told, e3.TreeConfig, float, tuple[str, ...]]


def cases() -> Iterator[Case]:
    """Pair, what is told, tree, temperature, faults; the right server first each time."""
    single, some = (((), *((fault,) for fault in faults)) for faults in (FAULTS, SOME_FAULTS))
    for kind in KINDS:
        yield from ((kind, "request fields", CHAIN, 0.0, faults) for faults in (*single, *TWO_FAULTS))
        yield from ((kind, "log line", CHAIN, 0.0, faults) for faults in some)
        yield from ((kind, "request fields", CHAIN, TEMPERATURE, faults) for faults in some)
    for kind, tree in zip(("gqa", "mla"), TREES, strict=True):
        yield from ((kind, "request fields", tree, 0.0, faults) for faults in ((), *((f,) for f in TREE_FAULTS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="of each pair")
    prompts = parser.parse_args().prompts
    warnings.simplefilter("ignore")
    rows = []
    for kind, told, tree, temperature, faults in cases():
        run = run_blind(kind, faults, told, num_prompts=prompts, tree=tree, temperature=temperature)
        rows.append(row(kind, told, tree, temperature, run))
        print(json.dumps(rows[-1]), flush=True)
    settings = {"new_tokens": NEW_TOKENS, "prompts": prompts, "dtype": "float32", "wall_clock": wall_clock(prompts)}
    RESULTS.write_text(json.dumps({**settings, "summary": summary(rows), "rows": rows}, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


def wall_clock(prompts: int) -> list[dict[str, Any]]:
    """What one diagnosis costs in rows and by the clock, both in plain replays of the trace."""
    found = []
    for kind in KINDS:
        here = world_at(kind, prompts, 0.0)
        e3.replay(here.trace, here.draft, CHAIN)  # the first one also reads the trace from the disk
        started = time.perf_counter()
        e3.replay(here.trace, here.draft, CHAIN)
        replay = time.perf_counter() - started
        cost = run_blind(kind, ("capture-plus-1",), "request fields", num_prompts=prompts).diagnosis.cost
        by_clock = round(cost.seconds / replay, 1)
        found.append({"pair": kind, "replays_by_rows": round(cost.replays, 1), "replays_by_clock": by_clock})
        found[-1]["seconds"] = round(cost.seconds, 1)
    return found


def row(kind: str, told: Told, tree: e3.TreeConfig, temperature: float, blind: Blind) -> dict[str, Any]:
    """One line of the table."""
    found = blind.diagnosis
    return {
        "pair": kind,
        "told": told,
        "tree": f"{tree.num_steps}/{tree.topk}/{tree.num_draft_tokens}",
        "temperature": temperature,
        "truth": blind.name,
        "shows": blind.shows,
        "rank": blind.rank,
        "tied": len(found.leading),
        "in_leading_tie": blind.found,
        "wrongly_named": found.verdict == "cause named" and not blind.found,
        "verdict": found.verdict,
        "first": found.ranked[0].name,
        "leading": list(found.names),
        "replays": round(found.cost.replays, 1),
        "hypotheses": found.cost.hypotheses,
    }


def faults_in(row: dict[str, Any]) -> int:
    """At once; 0 for the right server."""
    return 0 if row["truth"] == "right" else len(row["truth"].split(" + "))


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By setting and faults at once: faults that changed a round are the identifiable ones."""
    names = ("pair", "told", "tree", "temperature")
    found = []
    for *setting, at_once in dict.fromkeys((*(row[name] for name in names), faults_in(row)) for row in rows):
        same = [row for row in rows if [row[name] for name in names] == setting]
        some = [row for row in same if row["shows"] and faults_in(row) == at_once]
        if not at_once:
            continue
        ties = sorted(row["tied"] for row in some)
        found.append(
            {
                **dict(zip(names, setting, strict=True)),
                "at_once": at_once,
                "identifiable": len(some),
                "alone_first": sum(row["in_leading_tie"] and row["tied"] == 1 for row in some),
                "in_leading_tie": sum(row["in_leading_tie"] for row in some),
                "wrongly_named": sum(row["wrongly_named"] for row in some),
                "median_tie": ties[len(ties) // 2] if ties else None,
                "right_server": next(row["verdict"] for row in same if row["truth"] == "right"),
                "most_replays": max(row["replays"] for row in same),
            }
        )
    return found


if __name__ == "__main__":
    main()

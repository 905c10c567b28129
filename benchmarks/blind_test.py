"""How often is the true cause named? Servers with known faults, of which only what they say is told.

    PYTHONPATH=tests python benchmarks/blind_test.py [--prompts 16] [--kinds llama,gqa,mla] [--told "request fields"]

A live decode with no fault, one, or two writes a log and request fields (``tests/faulty_server.py``). The diagnosis
gets both, or the log alone. Nothing is drawn, so the table is the same on every run of one machine. A run of some pairs
replaces their rows, and leaves the others.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from blind import CHAIN, FAULTS, NEW_TOKENS, TWO_FAULTS, Blind, Told, run_blind

RESULTS = Path(__file__).parent / "results" / "blind_test.json"
KINDS = ("llama", "gqa", "mla")
CASES: tuple[tuple[str, ...], ...] = ((), *((fault,) for fault in FAULTS), *TWO_FAULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16, help="of each pair")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which pairs")
    parser.add_argument("--told", choices=get_args(Told), action="append", help="both if not given")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {(row["pair"], row["told"], row["truth"]): row for row in kept}
    for kind in arguments.kinds.split(","):
        for told in arguments.told or get_args(Told):
            for faults in CASES:
                found = row(kind, told, run_blind(kind, faults, told, num_prompts=arguments.prompts))
                found["prompts"] = arguments.prompts
                rows[found["pair"], found["told"], found["truth"]] = found
                print(json.dumps(found), flush=True)
            write(list(rows.values()))


def write(rows: list[dict[str, Any]]) -> None:
    """The table, and its summary, which is printed as well."""
    settings = {"new_tokens": NEW_TOKENS, "tree": str(CHAIN), "dtype": "float32"}
    RESULTS.write_text(json.dumps({**settings, "summary": summary(rows), "rows": rows}, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


def row(kind: str, told: Told, blind: Blind) -> dict[str, Any]:
    """One line of the table."""
    found = blind.diagnosis
    return {
        "pair": kind,
        "told": told,
        "truth": blind.name,
        "shows": blind.shows,
        "rank": blind.rank,
        "tied": len(found.leading),
        "in_leading_tie": blind.found,
        "verdict": found.verdict,
        "first": found.ranked[0].name,
        "replays": round(found.cost.replays, 1),
        "hypotheses": found.cost.hypotheses,
    }


def faults_in(row: dict[str, Any]) -> int:
    """At once; 0 for the right server."""
    return 0 if row["truth"] == "right" else len(row["truth"].split(" + "))


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By pair and by what was told: faults that changed a round are the identifiable ones."""
    found = []
    for kind, told, at_once in dict.fromkeys((row["pair"], row["told"], faults_in(row)) for row in rows):
        some = [row for row in rows if (row["pair"], row["told"]) == (kind, told)]
        faulty = [row for row in some if row["shows"] and faults_in(row) == at_once]
        if not at_once:
            continue
        ties = sorted(row["tied"] for row in faulty)
        found.append(
            {
                "pair": kind,
                "told": told,
                "at_once": at_once,
                "identifiable": len(faulty),
                "alone_first": sum(row["rank"] == 1 and row["tied"] == 1 for row in faulty),
                "in_leading_tie": sum(row["in_leading_tie"] for row in faulty),
                "median_tie": ties[len(ties) // 2] if ties else None,
                "right_server": next(row["verdict"] for row in some if row["truth"] == "right"),
                "most_replays": max(row["replays"] for row in some),
            }
        )
    return found


if __name__ == "__main__":
    main()

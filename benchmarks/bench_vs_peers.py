"""Tokens of trajectory scored per second, against others that accept the same drafts of the same draft.

    python benchmarks/bench_vs_peers.py --safeailab FOLDER --speculators PYTHON --engines FOLDER

Every peer runs the same weights over the same trace; arms that are compared run in turn within one process, or beside
one that waits. Nothing is timed before the rounds are held against each other. Without an option its peer is not run,
and the results say so; SafeAILab's code is cloned for the run when no folder is named. Takes about half an hour on two
cores. Writes benchmarks/results/bench_vs_peers_cpu.json, and the tables of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peers import earlier, growth, rate, replays, steps, tables, workloads
from peers.worker import PeerError

import eagle3ref as e3
from eagle3ref.draft.checkpoint import DraftWarning

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "bench_vs_peers_cpu.json"
SAFEAILAB = "https://github.com/SafeAILab/EAGLE"
SAFEAILAB_COMMIT = "cb7e084"

Pairs = list[workloads.Workload]
Rows = Iterator[dict[str, Any]]


def main() -> int:
    arguments = parse_arguments()
    warnings.simplefilter("ignore", DraftWarning)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for results in measured(arguments, Path(folder)):
                RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                tables.write(results, HERE.parent / "docs" / "benchmarks.md")
    except (e3.Eagle3RefError, PeerError) as error:
        print(error, file=sys.stderr)
        return 2
    except replays.DisagreementError as error:
        print(f"No timing means anything: {error}.", file=sys.stderr)
        return 1
    print("\n\n".join(tables.tables(results).values()))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--safeailab", type=Path, metavar="FOLDER", help="a checkout of its repository (cloned)")
    parser.add_argument("--speculators", type=Path, metavar="PYTHON", help="an interpreter that make test-peers makes")
    parser.add_argument("--engines", type=Path, metavar="FOLDER", help="environments that make test-engines makes")
    parser.add_argument("--mid-size", type=Path, metavar="FOLDER", help="what mid_size.py wrote (made)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS), help="parts to measure (all)")
    return parser.parse_args()


def measured(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """All results so far, after each part; one that is left out keeps what its last run gave, with its date."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    pairs = [workloads.nano(folder), workloads.mid(folder, arguments.mid_size)]
    for name in arguments.only:
        not_run: dict[str, str] = {}
        rows = []
        for row in PARTS[name](arguments, pairs, folder, not_run):
            print(f"{name}: {json.dumps(row)}", file=sys.stderr, flush=True)
            rows.append(row)
        results[name] = {**circumstances(arguments), "rows": rows, "not_run": not_run}
        yield results


def circumstances(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "versions": {"eagle3ref": e3.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "dtype": "float32",
        "repeats": arguments.repeats,
    }


def draft_side(arguments: argparse.Namespace, pairs: Pairs, folder: Path, not_run: dict[str, str]) -> Rows:
    """Both pairs, chain and tree: our replays, the earliest one, SafeAILab's loop."""
    try:
        safeailab = arguments.safeailab or clone(folder / "EAGLE")
    except PeerError as error:
        safeailab, not_run[replays.SAFEAILAB] = None, str(error)
    for pair in pairs:
        with earlier.earlier(pair, folder / "earlier") as spine:
            for tree in replays.TREES:
                yield replays.compare(pair, tree, safeailab, spine, arguments.repeats)


def per_step(arguments: argparse.Namespace, pairs: Pairs, folder: Path, not_run: dict[str, str]) -> Rows:
    """Both pairs, the chain: speculators' forward, at every position."""
    if arguments.speculators is None:
        not_run[steps.SPECULATORS] = "no --speculators"
        return
    for pair in pairs:
        place = folder / f"steps-{pair.name}"
        try:
            yield steps.compare(pair, replays.TREES[0], arguments.speculators, place, arguments.repeats)
        except PeerError as error:
            not_run[f"{steps.SPECULATORS}, {pair.name}"] = str(error)


def end_to_end(arguments: argparse.Namespace, _pairs: Pairs, folder: Path, not_run: dict[str, str]) -> Rows:
    """Live decoding here, SGLang and vLLM, each with a replay of the same answers beside it."""
    sys.path.append(str(HERE.parent / "tests"))  # the engines' runs are those of the tests
    from peers import engines

    not_run |= engines.NOT_RUN
    for run in engines.RUNS:
        place = folder / str(run)
        place.mkdir(parents=True)
        python = arguments.engines and arguments.engines / run.engine / "bin" / "python"
        if python is None:
            not_run[str(run)] = "no --engines"
        try:
            yield engines.compare(run, python, place, arguments.repeats)
        except PeerError as error:
            not_run[str(run)] = str(error)


def as_it_grows(_arguments: argparse.Namespace, _pairs: Pairs, folder: Path, _not_run: dict[str, str]) -> Rows:
    yield from growth.measure(folder / "growth")


def of_the_machine(arguments: argparse.Namespace, pairs: Pairs, _folder: Path, _not_run: dict[str, str]) -> Rows:
    return (rate.share(pair, arguments.repeats) for pair in pairs)


PARTS: dict[str, Callable[[argparse.Namespace, Pairs, Path, dict[str, str]], Rows]] = {
    "replays": draft_side,
    "steps": per_step,
    "engines": end_to_end,
    "growth": as_it_grows,
    "rate": of_the_machine,
}


def clone(folder: Path) -> Path:
    """SafeAILab's repository at the commit that this was written against.

    Raises:
        PeerError: no git, or no network.
    """
    try:
        subprocess.run(["git", "clone", "--quiet", "--filter=blob:none", SAFEAILAB, folder], check=True)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", SAFEAILAB_COMMIT], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(f"{SAFEAILAB} cannot be cloned: {error}") from error
    return folder


if __name__ == "__main__":
    sys.exit(main())

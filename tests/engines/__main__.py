"""``python -m engines``: serve the runs with the real engines, and compare every round with the reference's.

Exit status 0: all rounds agree; 1: some do not, or an engine did not serve a run. An engine that cannot be installed
or fails is reported, and the others still run.
"""

from __future__ import annotations

import argparse
import fnmatch
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from eagle3ref.draft.checkpoint import DraftWarning
from engines.comparison import compare
from engines.environment import python_of
from engines.plan import ENGINES, RUNS, Engine, Run
from engines.recording import path_of, read, recording_of, write
from engines.serve import EngineError, serve


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore", DraftWarning)  # odd drafts are the point here
    print(f"{'run':38}{'seconds':>8}{'rounds':>8}{'agree':>8}  recording", flush=True)
    complete = True
    for engine in ENGINES:
        runs = [run for run in RUNS if run.engine == engine and fnmatch.fnmatch(str(run), options.only)]
        python = _python(engine, options.environments) if runs else None
        complete &= not runs or python is not None
        for run in runs if python else []:
            complete &= _report(run, python, options.record)
    return 0 if complete else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engines", description=__doc__)
    parser.add_argument("--environments", type=Path, required=True, help="folder of the engines' environments")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs to serve, for example 'vllm/k3*'")
    parser.add_argument("--record", action="store_true", help="write the golden files anew")
    return parser.parse_args()


def _python(engine: Engine, environments: Path) -> Path | None:
    try:
        return python_of(engine, environments.resolve())
    except subprocess.CalledProcessError as error:
        print(f"{engine}: cannot be installed ({error})", flush=True)
        return None


def _report(run: Run, python: Path, record: bool) -> bool:
    """Serve and compare one run, and print its line."""
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = serve(run, python, Path(folder))
    except EngineError as error:
        print(f"{run!s:38} not served: {error}", flush=True)
        return False
    seconds = time.monotonic() - started
    if record:
        write(run, result)
    agreement = compare(run, recording_of(run, result))
    state = "written" if record else _state(run, result)
    print(f"{run!s:38}{seconds:8.0f}{agreement.rounds:8}{agreement.agreeing:8}  {state}", flush=True)
    if agreement.first_difference:
        print(f"    {agreement.first_difference}", flush=True)
    return agreement.complete


def _state(run: Run, result: dict[str, object]) -> str:
    """Whether the engine wrote and accepted what it did when it was recorded."""
    if not path_of(run).exists():
        return "none"
    recorded = read(run)
    return "same" if all(result[name] == recorded[name] for name in ("answers", "rounds")) else "differs"


if __name__ == "__main__":
    sys.exit(main())

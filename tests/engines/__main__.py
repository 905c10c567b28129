"""``python -m engines``: serve the runs with the real engines, and compare every round with the reference's.

With ``--record`` the HTTP servers are started too, and what they say and the hidden states that they dump are written.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from eagle3ref.draft.checkpoint import DraftWarning
from engines.comparison import compare
from engines.dump_plan import DUMPS, DumpRun
from engines.dump_recording import path_of as path_of_dump
from engines.dump_recording import record_dump
from engines.environment import python_of
from engines.http_plan import SERVERS, Server
from engines.http_recording import record
from engines.http_server import serving
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
        asked = bool(runs or _servers(engine, options) or _dumps(engine, options))
        python = _python(engine, options.environments) if asked else None
        complete &= not asked or python is not None
        for run in runs if python else []:
            complete &= _report(run, python, options.record)
        for server in _servers(engine, options) if python else []:
            complete &= _record(server, partial(_record_server, server, python))
        for dump in _dumps(engine, options) if python else []:
            complete &= _record(dump, partial(record_dump, dump, python, path_of_dump(dump)))
    return 0 if complete else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engines", description=__doc__)
    parser.add_argument("--environments", type=Path, required=True, help="folder of the engines' environments")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs to serve, for example 'vllm/k3*'")
    parser.add_argument("--record", action="store_true", help="write all golden files anew")
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


def _servers(engine: Engine, options: argparse.Namespace) -> list[Server]:
    """HTTP servers to record; without ``--record`` they are the business of ``test_servers_live.py``."""
    return [s for s in SERVERS if options.record and s.engine == engine and fnmatch.fnmatch(str(s), options.only)]


def _dumps(engine: Engine, options: argparse.Namespace) -> list[DumpRun]:
    """Dumps to record; without ``--record`` they are the business of ``test_dumps_sglang_live.py``."""
    return [d for d in DUMPS if options.record and d.engine == engine and fnmatch.fnmatch(str(d), options.only)]


def _record(name: Server | DumpRun, write: Callable[[], None]) -> bool:
    """Start a server, write what it says, and print its line."""
    started = time.monotonic()
    try:
        write()
    except (EngineError, httpx.HTTPError, subprocess.SubprocessError) as error:
        print(f"{name!s:38} not recorded: {error}", flush=True)
        return False
    print(f"{name!s:38}{time.monotonic() - started:8.0f}{'':16}  written", flush=True)
    return True


def _record_server(server: Server, python: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(server, python, Path(folder)) as running:
        record(server, running, python)


def _state(run: Run, result: dict[str, object]) -> str:
    """Whether the engine wrote and accepted what it did when it was recorded."""
    if not path_of(run).exists():
        return "none"
    recorded = read(run)
    return "same" if all(result[name] == recorded[name] for name in ("answers", "rounds")) else "differs"


if __name__ == "__main__":
    sys.exit(main())

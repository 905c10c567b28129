"""What `import eagle3ref` costs, and what an installed copy holds."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"triton", "transformers", "typer", "rich", "scipy", "httpx", "prometheus_client"}

MEASURE = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.process_time()
import eagle3ref
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def measure_import() -> tuple[float, set[str]]:
    """CPU seconds that the import adds after torch, and the top-level packages that it brings in.

    CPU time, since a busy machine makes everything slow by the clock on the wall.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    return report["seconds"], {name.split(".")[0] for name in report["modules"]}


def test_import_is_quick_and_light() -> None:
    """Would catch a heavy library imported at the top of a module instead of where it is used."""
    seconds, packages = measure_import()
    assert "eagle3ref" in packages
    assert packages & HEAVY == set()
    # A machine that is short of memory bandwidth slows CPU time too: one quick import of three is enough.
    assert seconds < 0.5 or min(measure_import()[0] for _ in range(2)) < 0.5


@pytest.mark.slow
def test_wheel_holds_every_source_and_data_file(tmp_path: Path) -> None:
    """Would catch a subpackage, py.typed or nano data that works in the checkout and is missing once installed."""
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", "."]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)

    (wheel,) = tree.glob("eagle3ref-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (entry_points,) = (name for name in packed if name.endswith(".dist-info/entry_points.txt"))
        assert "eagle3ref = eagle3ref.__main__:main" in archive.read(entry_points).decode()
    files = (path for path in (tree / "src" / "eagle3ref").rglob("*") if path.is_file())
    source = {path.relative_to(tree / "src").as_posix() for path in files}
    assert "eagle3ref/py.typed" in packed
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)
    assert {name for name in packed if name.startswith("eagle3ref/")} == source

"""One virtual environment for each engine, installed from its pinned requirements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engines.plan import Engine

HERE = Path(__file__).parent


def python_of(engine: Engine, folder: Path) -> Path:
    """The interpreter of the engine's environment in ``folder``, which is made, or made again, as needed.

    Raises:
        subprocess.CalledProcessError: the installation failed; its output has been shown.
    """
    requirements = HERE / f"requirements-{engine}.txt"
    environment = folder / engine
    python, stamp = environment / "bin" / "python", environment / "installed.txt"
    wanted = requirements.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        stamp.unlink(missing_ok=True)
        _run(sys.executable, "-m", "venv", "--clear", environment)
        install = (python, "-m", "pip", "install", "--quiet", "--no-deps")
        _run(*install, "--requirement", requirements)
        stamp.write_text(wanted)
    return python


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)

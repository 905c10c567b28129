"""A module imports only from modules above it, and the tree keeps the shape that DESIGN promises."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import eagle3ref

PACKAGE = "eagle3ref"

# From the bottom up: a module may import itself and whatever stands before it. `__init__` is the public names.
ORDER = (
    "errors",
    "version",
    "durable",
    "config",
    "weights",
    "statistics",
    "acceptance",
    "engines",
    "nn",
    "sampling",
    "target",
    "tree",
    "verify",
    "draft",
    "kernels",
    "cuda_graph",
    "explain",
    "decode",
    "trace",
    "replay",
    "positions",
    "dumps",
    "align",
    "inspection",
    "servers",
    "speedup",
    "tune",
    "crosscheck",
    "diagnose",
    "report",
    "nano",
    "__init__",
    "cli",
    "__main__",
)
FORBIDDEN_NAMES = {"utils", "util", "common", "types", "helpers", "misc"}
MAX_LINES = 300
TERMINAL_LIBRARIES = {"typer", "click", "rich"}
TERMINAL_MODULES = {"report", "cli", "__main__"}


def imports(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a file, wherever it stands; ``from a import b`` gives ``a.b``."""
    parents = (PACKAGE, *path.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parents[: len(parents) + 1 - node.level]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def layer_of(dotted: str) -> str:
    """The top-level module that a dotted name inside the package belongs to."""
    first = dotted.split(".")[1:2]
    return first[0] if first and first[0] in ORDER else "__init__"


def problems_of_file(path: Path, package: Path) -> Iterator[str]:
    where = path.relative_to(package)
    layer = where.parts[0].removesuffix(".py")
    if FORBIDDEN_NAMES & {part.removesuffix(".py") for part in where.parts}:
        yield f"{where}: a name that says nothing of what is inside"
    if (num_lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES:
        yield f"{where}: {num_lines} lines, at most {MAX_LINES}"
    if layer not in ORDER:
        yield f"{where}: {layer} has no place in the order"
        return
    for line, name in imports(path, package):
        root = name.split(".")[0]
        if root == PACKAGE and ORDER.index(layer_of(name)) > ORDER.index(layer):
            yield f"{where}:{line}: {layer} imports {name}, which stands above it"
        if root in TERMINAL_LIBRARIES and layer not in TERMINAL_MODULES:
            yield f"{where}:{line}: {layer} imports {root}, which only {sorted(TERMINAL_MODULES)} may"


def problems(package: Path) -> list[str]:
    return [problem for path in sorted(package.rglob("*.py")) for problem in problems_of_file(path, package)]


def test_package_keeps_its_layers() -> None:
    """Would catch an import upwards, lazy or for types only, and a module nobody gave a place."""
    package = Path(eagle3ref.__file__).parent
    assert (package / "errors.py").is_file()
    assert problems(package) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("tree.py", "from eagle3ref.draft import propose", "tree.py:1: tree imports eagle3ref.draft.propose"),
        ("tree.py", "from eagle3ref import draft", "tree.py:1: tree imports eagle3ref.draft,"),
        ("tree.py", "import eagle3ref.draft.propose as p", "tree.py:1: tree imports eagle3ref.draft.propose"),
        ("tree.py", "from eagle3ref import replay_all", "tree.py:1: tree imports eagle3ref.replay_all"),
        ("tree.py", "from . import draft", "tree.py:1: tree imports eagle3ref.draft,"),
        ("nn/norm.py", "from ..target.base import Target", "norm.py:1: nn imports eagle3ref.target.base.Target"),
        ("nn/__init__.py", "from ..target import base", "__init__.py:1: nn imports eagle3ref.target.base"),
        ("tree.py", "def f():\n    import eagle3ref.cli", "tree.py:2: tree imports eagle3ref.cli,"),
        (
            "tree.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from eagle3ref.trace import Trace",
            "tree.py:3: tree imports eagle3ref.trace.Trace",
        ),
        ("__init__.py", "from eagle3ref.cli import main", "__init__.py:1: __init__ imports eagle3ref.cli.main"),
        ("replay.py", "from rich.table import Table", "replay.py:1: replay imports rich"),
        ("newcomer.py", "", "newcomer.py: newcomer has no place"),
        ("gadgets/fusion.py", "", "gadgets has no place"),
        ("nn/utils.py", "", "utils.py: a name that says nothing"),
        ("tree.py", "\n" * 301, "tree.py: 301 lines"),
    ],
)
def test_planted_violation_is_found(tmp_path: Path, file: str, source: str, expected: str) -> None:
    """Would catch a checker that is blind to one way of writing an import."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    (found,) = problems(tmp_path)
    assert expected in found


def test_allowed_imports_pass(tmp_path: Path) -> None:
    """Would catch a checker that refuses siblings, lower layers, or a foreign module of the same name."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "propose.py").write_text(
        "import statistics\nfrom .model import Eagle3Draft\nfrom . import vocab\nfrom ..tree import DraftTree\n"
        "from eagle3ref.draft.checkpoint import load\nfrom eagle3ref.errors import Eagle3RefError\n",
        encoding="utf-8",
    )
    (tmp_path / "cli.py").write_text("import typer\nimport eagle3ref as e3\n", encoding="utf-8")
    assert problems(tmp_path) == []

"""What ``eagle3ref doctor`` found, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.kernels.self_check import OPERATIONS
from eagle3ref.report.style import facts

_STYLES = {
    "reference": "", "agrees": "green", "differs": "bold red", "fails": "bold red", "missing": "dim", "-": "dim",
}  # fmt: skip


def doctor_report(document: Mapping[str, Any]) -> RenderableType:
    """The facts of this installation, then what each backend has, and what to do about what it lacks."""
    backends = document["backends"]
    notes = [row for backend in backends for row in _notes(backend)]
    table = _operations(backends)
    ends: list[RenderableType] = [facts(notes), ""] if notes else []
    return Group(facts(_environment(document)), "", table, "", *ends, _verdict(document))


def _environment(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions, cpu, cuda = document["versions"], document["cpu"], document["cuda"]
    built_for = "a torch without CUDA" if cuda["torch_built_for"] is None else f"CUDA {cuda['torch_built_for']}"
    return [
        ("versions", ", ".join(f"{name} {number or 'not installed'}" for name, number in versions.items())),
        ("cpu", f"{cpu['capability']}, {cpu['cores']} logical cores, torch uses {cpu['threads']} threads"),
        ("cuda", f"{', '.join(cuda['devices']) or 'no device'}; {built_for}"),
        ("compilers", ", ".join(f"{name} {path or 'not found'}" for name, path in document["compilers"].items())),
    ]


def _operations(backends: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("operation")
    for backend in backends:
        table.add_column(_name(backend))
    for operation in OPERATIONS:
        found = [backend["operations"].get(operation, "-") for backend in backends]
        table.add_row(operation, *(Text(state, style=_STYLES[state]) for state in found))
    return table


def _notes(backend: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is not there and what to do, and what was said by operations that raised."""
    if backend["missing"] is not None:
        return [(_name(backend), f"missing: {backend['missing']}. {backend['action']}")]
    return [(_name(backend), f"{operation}: {said}") for operation, said in backend["crashes"].items()]


def _verdict(document: Mapping[str, Any]) -> Text:
    found = [
        (state, f"{operation} ({_name(backend)})")
        for backend in document["backends"]
        for operation, state in backend["operations"].items()
    ]
    wrong = [f"{where} {state}" for state, where in found if state in ("differs", "fails")]
    if wrong:
        return Text(f"Not to be trusted: {', '.join(wrong)}.", style="bold red")
    if not any(state == "agrees" for state, _ in found):
        return Text("No twin is here. The reference needs none.")
    return Text("Every twin that is here does what the reference does: checked now, on tiny inputs.")


def _name(backend: Mapping[str, Any]) -> str:
    return f"{backend['backend']} {backend['device']}"

"""``eagle3ref doctor``: is what it says true, and does it see a twin that is wrong?"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from native_parts import built
from triton.runtime.errors import InterpreterError
from typer.testing import CliRunner

from eagle3ref import verify
from eagle3ref.cli import app
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import backends_with, fusion, native, native_library, self_check, trees
from eagle3ref.kernels.ops import Ops
from eagle3ref.target import int4


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    return result.exit_code, result.stdout


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its interpreter, which takes a second for all of its kernels."""
    monkeypatch.setattr(self_check, "_is_interpreted", lambda: False)


def backend(name: str, device: str) -> dict[str, Any]:
    """Its entry in the document."""
    document = json.loads(doctor("--json")[1])
    (found,) = [entry for entry in document["backends"] if (entry["backend"], entry["device"]) == (name, device)]
    return found


def test_every_operation_is_checked_of_every_backend_that_is_here():
    """Bug: an operation without a check, or a backend left out, behind a sentence that says all is well."""
    assert set(self_check._ARGUMENTS) == {field.name for field in dataclasses.fields(Ops)} - {"name"}
    status, text = doctor("--json")
    document = json.loads(text)
    assert (status, document["sound"]) == (0, True)
    assert document["versions"]["torch"] == torch.__version__
    for entry in document["backends"]:
        has = {operation for operation in self_check.OPERATIONS if entry["backend"] in backends_with(operation)}
        assert set(entry["operations"]) == has
        expected = "missing" if entry["missing"] else "reference" if entry["backend"] == "torch" else "agrees"
        assert set(entry["operations"].values()) == {expected}, entry


def test_a_kernel_that_is_slightly_wrong_is_found(monkeypatch):
    """Bug: a tolerance under which anything passes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    right = fusion.fuse
    monkeypatch.setattr(fusion, "fuse", lambda *arguments: right(*arguments) * (1 + 2**-12))
    assert backend("triton", device)["operations"]["fuse"] == "differs"


def test_a_tree_with_one_wrong_node_is_found(monkeypatch):
    """Bug: integers compared by a tolerance, or only in part."""
    right = trees.build_tree

    def wrong(*arguments, **settings):
        tree = right(*arguments, **settings)
        tree.tree_mask[1, 4, 4] = False
        return tree

    monkeypatch.setattr(trees, "build_tree", wrong)
    status, text = doctor()
    assert status == 1
    assert "Not to be trusted" in text
    assert "build_tree (triton" in text


def test_a_kernel_that_does_not_compile_is_found(monkeypatch):
    """Bug: an error of Triton's own kind, which is no RuntimeError, as the end of the doctor."""

    def broken(*_: object, **__: object) -> None:
        raise InterpreterError("line one\n  line two")

    monkeypatch.setattr(trees, "build_tree", broken)
    document = json.loads(doctor("--json")[1])
    assert document["sound"] is False
    found = next(entry for entry in document["backends"] if entry["backend"] == "triton")
    assert (found["operations"]["build_tree"], set(found["crashes"])) == ("fails", {"build_tree"})
    assert "\n" not in found["crashes"]["build_tree"]
    status, text = doctor()
    assert status == 1
    assert "Not to be trusted: build_tree (triton" in " ".join(text.split())


def test_a_triton_that_cannot_be_imported_is_missing(monkeypatch):
    """Bug: a broken installation, which find_spec does not see, as the end of the doctor."""
    device, right = "cuda" if torch.cuda.is_available() else "cpu", self_check.get_ops

    def without(name: str) -> Ops:
        if name == "triton":
            raise Eagle3RefError(
                "choosing", found="no Triton here (a broken library)", expected="one", action="Mend it."
            )
        return right(name)

    monkeypatch.setattr(self_check, "get_ops", without)
    found = backend("triton", device)
    assert (found["missing"], found["action"]) == ("no Triton here (a broken library)", "Mend it.")
    assert set(found["operations"].values()) == {"missing"}


@pytest.mark.usefixtures("without_triton")
def test_without_any_twin_nothing_is_said_of_twins(monkeypatch):
    """Bug: "every twin that is here agrees" where none is."""
    monkeypatch.setattr(self_check, "_missing", lambda backend, _: None if backend == "torch" else ("none", "Wait."))
    status, text = doctor()
    assert status == 0
    assert "No twin is here" in text
    assert "Every twin" not in text


@built
@pytest.mark.parametrize("name", sorted({"unpack_int4", "dequantize_int4", "verify_target_only", "walk_positions"}))
@pytest.mark.usefixtures("without_triton")
def test_a_native_twin_that_raises_or_differs_is_found(monkeypatch, name):
    """Bug: a crash that ends the doctor too, or a twin that is never called."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(native, name, broken)
    found = backend("native", "cpu")
    assert found["operations"].pop(name) == "fails"
    assert found["crashes"] == {name: "RuntimeError: no luck"}
    assert set(found["operations"].values()) == {"agrees"}
    monkeypatch.setattr(native, name, lambda *arguments, **_: _other(name, arguments))
    assert backend("native", "cpu")["operations"][name] == "differs"


def _other(name: str, arguments: Any) -> Any:
    """What another input would give."""
    if name == "walk_positions":
        return arguments[0]
    if name == "verify_target_only":
        return verify.verify_target_only(*arguments[:3], 1 - arguments[3])
    return getattr(int4, name)(arguments[0] + 1, *arguments[1:])


@pytest.mark.usefixtures("without_triton")
def test_what_is_not_built_says_what_to_do(monkeypatch):
    """Bug: silence about a twin that is missing, or an exit status that calls a pure Python install broken."""
    monkeypatch.setattr(self_check, "why_not", lambda device: f"nothing for {device}")
    status, text = doctor()
    assert status == 0
    advice = "missing: nothing for cpu. Build it from the source folder: EAGLE3REF_EXT=cpu pip install"
    assert advice in " ".join(text.split())
    found = backend("native", "cpu")
    assert set(found["operations"].values()) == {"missing"}
    assert found["action"] == native_library.how_to_build("cpu")

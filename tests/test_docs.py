"""The documentation runs, its links lead somewhere, and it names only what exists."""

import dataclasses
import importlib
import importlib.util
import re
import xml.etree.ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A language outside this list is refused, so that no code escapes being run by its label. "python" is run.
LANGUAGES = {"python", "text", "json", "console"}
FENCE = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAME = re.compile(r"\b(?:e3|eagle3ref)((?:\.[A-Za-z_]\w*)+)")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp|root|home|Users|mnt|scratch)\b")

each_document = pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)


def fences(text: str) -> list[tuple[int, str, str]]:
    """(line of the first code line, language, code) of every fenced block."""
    return [(text.count("\n", 0, m.start()) + 2, m[2].strip(), m[3]) for m in FENCE.finditer(text)]


def anchors(text: str) -> set[str]:
    """The fragments that GitHub makes of the headings."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(dotted: str) -> bool:
    """Whether ``eagle3ref.<dotted>`` is a module, an attribute or a dataclass field."""
    found: object = importlib.import_module("eagle3ref")
    for name in dotted.split("."):
        if isinstance(found, ModuleType) and not hasattr(found, name):
            if importlib.util.find_spec(f"{found.__name__}.{name}") is None:
                return False
            importlib.import_module(f"{found.__name__}.{name}")
        if dataclasses.is_dataclass(found) and name in {field.name for field in dataclasses.fields(found)}:
            return True
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


@each_document
def test_every_python_block_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that no longer works; the blocks of a page run in order, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for line, language, code in fences(path.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)


@each_document
def test_no_code_escapes_the_test_above(path: Path) -> None:
    """A block labelled "py", not closed, or indented, which would silently never be run."""
    text = path.read_text(encoding="utf-8")
    assert {language for _, language, _ in fences(text)} <= LANGUAGES
    rest = FENCE.sub("", text)
    assert "```" not in rest
    assert not re.search(r"\n\n {4,}\S", rest), "an indented code block; use a fence"


@each_document
def test_relative_links_resolve(path: Path) -> None:
    """A file that was moved, or a heading that was renamed."""
    for link in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        file, _, fragment = link.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), link
        assert not fragment or fragment in anchors(linked.read_text(encoding="utf-8")), link


def test_every_page_is_linked_from_the_readme() -> None:
    """A page that nobody finds."""
    linked = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {f"docs/{path.name}" for path in DOCS[1:]} <= linked


@each_document
def test_names_exist(path: Path) -> None:
    """A public name that was renamed in the code only."""
    names = {match[1:] for match in NAME.findall(path.read_text(encoding="utf-8"))}
    assert [name for name in sorted(names) if not exists(name)] == []


@each_document
def test_no_path_of_a_machine(path: Path) -> None:
    """An author's own folder in an example or in pasted output."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if MACHINE_PATH.search(line)] == []


def test_the_patterns_match() -> None:
    """Patterns above that match nothing, which would pass every document."""
    text = "# A (b) c\n```python\nx = 1\n```\n[a](b.md#c) eagle3ref.nope e3.replay " + "/t" + "mp/x\n"
    assert fences(text) == [(3, "python", "x = 1\n")]
    assert anchors(text) == {"a-b-c"}
    assert LINK.findall(text) == ["b.md#c"]
    assert [exists(name[1:]) for name in NAME.findall(text)] == [False, True]
    assert MACHINE_PATH.search(text)
    assert not MACHINE_PATH.search("a/tmp ./work src/data /v1/loads")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_well_formed(path: Path) -> None:
    """A picture that a browser shows as an error message, or that reaches for something outside."""
    root = xml.etree.ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    assert "viewBox" in root.attrib
    assert not [element.tag for element in root.iter() if any("href" in key for key in element.attrib)]

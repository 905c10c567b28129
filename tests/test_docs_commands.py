"""Every command in the documentation is one that can be typed, and what a page shows of its output is printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from recorded_servers import BY_NAME, exchanges, trace_of
from stub_server import GOLDEN, StubServer, recorded, recorded_prompts
from typer.testing import CliRunner

from eagle3ref.cli import app
from eagle3ref.explain.flags import parse_server_flags

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
COMMANDS = typer.main.get_command(app).commands
TYPED = re.compile(r"^(?:\$ )?eagle3ref ((?:.*\\\n)*.*)$|`eagle3ref ([^`]+)`", re.MULTILINE)
CUT = re.compile(r"\.\.\.|…|\[…\]")


def typed(page: str) -> Iterator[list[str]]:
    """The words behind ``eagle3ref`` of each command, in blocks and in sentences, without its comment."""
    for block, inline in TYPED.findall(page):
        line = re.sub(r"\\\n|[\[\]]|\.\.\.", " ", block or inline)  # [--json] is an option, too
        yield shlex.split(re.split(r"\s#|\s>", line)[0])


def unknown_options(words: list[str]) -> list[str]:
    """Options that neither the command nor the engine's server has."""
    command, *rest = words
    if command.startswith("-"):
        return []
    parsed = COMMANDS[command]
    own = {name for parameter in parsed.params for name in parameter.opts + parameter.secondary_opts} | {"--help"}
    foreign = [at for at, word in enumerate(rest) if word.startswith("-") and word.split("=")[0] not in own]
    if parsed.context_settings.get("ignore_unknown_options"):
        engine = "vLLM" if any("vllm" in word for word in rest) else "SGLang"
        flags = {at: parse_server_flags(engine, rest[at : at + 2]) for at in foreign}
        foreign = [at for at, read in flags.items() if read.unknown or read.misspelled]
    return [rest[at] for at in foreign]


@pytest.mark.parametrize("name", PAGES)
def test_documented_commands_can_be_typed(name: str) -> None:
    """A command or an option that was renamed in the code only."""
    wrong = [(words, unknown) for words in typed(PAGES[name]) if (unknown := unknown_options(words))]
    assert wrong == []


def test_wrong_commands_are_found() -> None:
    """A search that finds no command, or a check that knows every option."""
    page = "```\n$ eagle3ref replay T D \\\n  --no-such 3  # --nor-this\n```\n`eagle3ref read LOG [--follow]`\n"
    assert list(typed(page)) == [["replay", "T", "D", "--no-such", "3"], ["read", "LOG", "--follow"]]
    assert [unknown_options(words) for words in typed(page)] == [["--no-such"], []]
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-no-such"]
    assert unknown_options(["explain", "D", "T", *flags]) == ["--speculative-no-such"]
    assert sum(len(list(typed(page))) for page in PAGES.values()) > 30


def shown(page: str, beginning: str) -> str:
    """The block that begins so."""
    (block,) = re.findall(rf"```\w+\n({re.escape(beginning)}.*?)```", PAGES[page], re.DOTALL)
    return block


def assert_printed(block: str, printed: str) -> None:
    """Every line of a block, between its cuts, is in the output, however that was broken into lines."""
    output = " ".join(printed.split())
    stretches = (" ".join(stretch.split()) for line in block.splitlines() for stretch in CUT.split(line))
    assert [stretch for stretch in stretches if stretch not in output] == []


def run(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "130"}).stdout


def test_the_founding_speed_is_shown_as_it_is_printed() -> None:
    """Figures on the page of a formula that was corrected since."""
    block = shown("speedup.md", "$ eagle3ref speedup --acceptance-length")
    command, _, output = block.partition("\n")
    assert_printed(output, run(*shlex.split(command)[2:]))


def test_the_crosscheck_of_a_real_server_is_shown_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict on the page in words, or of sums, that the command does not print any more."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "draft", "draft")
    prompts = [{"id": prompt.id, "tokens": prompt.tokens.tolist()} for prompt in recorded_prompts(6)]
    Path("prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    to = ("-o", "trace", "--capture-points", "2,4,5", "--max-new-tokens", 48, "--dtype", "float32")
    run("capture", GOLDEN / "target", "prompts.jsonl", *to)
    with StubServer("vllm") as server:
        server.run = recorded("vllm", "k3-output-ids")
        run("crosscheck", "trace", "draft", "--server", server.url, "--journal", "run", "--max-new-tokens", 48)
    assert_printed(shown("crosscheck.md", "differs"), run("crosscheck", "trace", "draft", "run"))


@pytest.mark.slow
def test_the_diagnosis_of_a_real_server_is_shown_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cause, a table or a cost on the page that the command does not print any more."""
    server = BY_NAME["http/sglang/3-1-4-input-ids"]
    answers = tmp_path / "answers.jsonl"
    responses = [exchange["response"] for exchange in exchanges(server)]
    rows = [{**one, "meta_info": {**one["meta_info"], "id": str(i)}} for i, one in enumerate(responses)]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(ROOT)
    command, _, output = shown("diagnose.md", "$ eagle3ref diagnose TRACE").partition("\n")
    stands_for = {"TRACE": trace_of(server).path, "answers.jsonl": answers}
    printed = run(*(stands_for.get(word, word) for word in shlex.split(command)[2:]))
    assert_printed(*(re.sub(r"and \d+ s:", "and some s:", text) for text in (output, printed)))  # by the clock

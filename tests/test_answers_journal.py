"""The journal of answers: a kill after any round, or in the middle of a line, costs no finished round."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from answering import CHAIN, NUM_NEW, TREE, WARM, Pair

import eagle3ref as e3
from eagle3ref.config import AcceptanceRule
from eagle3ref.decode import RoundDone, journal
from eagle3ref.target.generate import Sampling

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

SETTINGS = {
    "greedy": {},
    "greedy-tree": {"draft": True, "tree": TREE},
    "sampled": {"sampling": WARM},
    "sampled-tree": {"draft": True, "tree": TREE, "sampling": WARM},
}


class KilledError(Exception):
    """Stands for a kill between two rounds."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("journal"))


def answers(
    pair: Pair, path: Path, stop_after: int | None = None, **settings
) -> tuple[list[list[int]], list[RoundDone]]:
    """Answer with a journal; killed after that many calls of on_round."""
    done: list[RoundDone] = []

    def on_round(one: RoundDone) -> None:
        done.append(one)
        if len(done) == stop_after:
            raise KilledError

    if settings.get("draft"):
        settings["draft"] = pair.draft
    return pair.answers(journal=path, on_round=on_round, **settings), done


@pytest.mark.parametrize("name", SETTINGS)
def test_a_killed_call_goes_on_to_the_same_answers(pair, name, tmp_path):
    """Catches a token lost or doubled, draft rows that a resumed prompt lacks, and numbers drawn a second time."""
    whole, rounds = answers(pair, tmp_path / "whole", **SETTINGS[name])
    path, killed = tmp_path / "killed", 0
    while True:
        try:
            found, last = answers(pair, path, stop_after=3, **SETTINGS[name])
            break
        except KilledError:
            killed += 1
    assert killed >= 2
    assert found == whole
    assert last[-1:] in ([], rounds[-1:])  # progress counts the rounds before the kills; a kill may be the last
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_line_cut_short_is_written_over(pair, tmp_path):
    """Catches half a line that is believed, one that is kept in front of the next, and a header cut short."""
    path = tmp_path / "journal"
    whole, _ = answers(pair, path, **SETTINGS["sampled"])
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in [0, ends[0] - 1, ends[0], ends[0] + 9, ends[3] - 1, len(data) - 1]:
        path.write_bytes(data[:cut])
        assert answers(pair, path, **SETTINGS["sampled"])[0] == whole
        assert path.read_bytes() == data


def test_finished_answers_need_no_target(pair, tmp_path, monkeypatch):
    """Catches a pass over 594 GB that nobody asked for."""
    whole, _ = answers(pair, tmp_path / "journal")
    monkeypatch.setattr(pair.target, "embed", None)
    assert answers(pair, tmp_path / "journal") == (whole, [])


def test_only_open_prompts_go_through_the_target_again(pair, tmp_path, monkeypatch):
    """Catches rows of finished prompts in the pass with which a killed call goes on."""
    whole, _ = answers(pair, tmp_path / "whole")
    ended = e3.TargetConfig(**{**pair.target.config.__dict__, "eos_token_ids": (whole[1][0],)})
    monkeypatch.setattr(pair.target, "config", ended)
    with pytest.raises(KilledError):
        answers(pair, tmp_path / "journal", stop_after=2)
    lengths, embed = [], pair.target.embed
    monkeypatch.setattr(pair.target, "embed", lambda texts: lengths.extend(map(len, texts)) or embed(texts))
    answers(pair, tmp_path / "journal")
    still_open = [i for i in (0, 2) if whole[1][0] not in whole[i][:2]]
    assert lengths == [len(pair.prompts[i]) + 1 for i in still_open]  # two tokens there, and the last is the root


def test_more_tokens_go_on_and_another_draft_may(pair, tmp_path):
    """Catches rounds thrown away for settings that no token depends on."""
    whole, _ = answers(pair, tmp_path / "whole", **SETTINGS["greedy"])
    answers(pair, tmp_path / "journal", max_new_tokens=4, **SETTINGS["greedy-tree"])
    found, done = answers(pair, tmp_path / "journal", **SETTINGS["greedy"])
    assert found == whole
    assert done[0].num_tokens >= 4 * len(whole)


@pytest.mark.parametrize(
    ("settings", "other", "changed"),
    [
        ("greedy", {"prompts": [torch.tensor([1, 2])]}, "prompts"),
        ("greedy", {"sampling": WARM}, "rule, sampling, streams"),
        ("sampled", {"sampling": Sampling(**{**vars(WARM), "seed": 6})}, "sampling"),
        ("sampled", {"prompt_indices": [2, 1, 0]}, "streams"),
        ("sampled-tree", {"tree": CHAIN}, "tree"),
        ("sampled-tree", {"draft": None, "tree": None}, "tree"),
        ("sampled-tree", {"rule": AcceptanceRule("multi_round")}, "rule"),
    ],
)
def test_a_journal_of_something_else_is_refused(pair, settings, other, changed, tmp_path):
    """Catches answers of other prompts, and random numbers that two rounds would share."""
    with pytest.raises(KilledError):
        answers(pair, tmp_path / "journal", stop_after=2, **SETTINGS[settings])
    before = (tmp_path / "journal").read_bytes()
    with pytest.raises(e3.Eagle3RefError, match=f"a journal of answers with another {changed};.*delete"):
        answers(pair, tmp_path / "journal", **{**SETTINGS[settings], **other})
    assert (tmp_path / "journal").read_bytes() == before


def test_another_target_is_refused(pair, tmp_path, monkeypatch):
    """Catches the answers of one model recorded as those of another."""
    answers(pair, tmp_path / "journal", max_new_tokens=1)
    monkeypatch.setattr(pair.target, "config", e3.TargetConfig(**{**vars(pair.target.config), "config_sha256": "1"}))
    with pytest.raises(e3.Eagle3RefError, match="another target"):
        answers(pair, tmp_path / "journal")


def test_the_target_in_another_dtype_is_refused(pair, tmp_path):
    """Catches answers of which the first half is bf16's and the rest fp64's."""
    answers(pair, tmp_path / "journal", max_new_tokens=1)
    with pytest.raises(e3.Eagle3RefError, match="another target"):
        answers(pair, tmp_path / "journal", target=e3.load_target(pair.folder))


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"[1]\n", b'{"schema_version": 2}\n', b"\xff\xfe\n", b"\n"])
def test_a_file_that_is_no_journal_is_left_alone(pair, content, tmp_path):
    """Catches somebody's file written over, and a traceback."""
    (tmp_path / "notes").write_bytes(content)
    with pytest.raises(e3.Eagle3RefError, match="something else"):
        answers(pair, tmp_path / "notes")
    assert (tmp_path / "notes").read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"round": 3, "tokens": {"0": [1]}}',
        b'{"round": 1, "tokens": [1]}',
        b'{"round": 1, "tokens": {"3": [1]}}',
        b'{"round": 1, "tokens": {"-1": [1]}}',
        b'{"round": 1, "tokens": {"0": []}}',
        b'{"round": 1, "tokens": {"0": [96]}}',
        b'{"round": 1, "tokens": {"0": [-1]}}',
        b'{"round": 1, "tokens": {"0": [true]}}',
        b'{"round": 1, "tokens": {"0": 1}}',
    ],
)
def test_a_damaged_line_is_named(pair, line, tmp_path):
    """Catches damage that ends in a traceback, or in an answer with a token that the target never said."""
    path = tmp_path / "journal"
    with pytest.raises(KilledError):
        answers(pair, path, stop_after=1)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(e3.Eagle3RefError, match="line 3, which is damaged"):
        answers(pair, path)


def test_a_full_disk_keeps_the_rounds_before(pair, tmp_path, monkeypatch):
    """Catches a traceback, and a line lost with those before it."""
    whole, _ = answers(pair, tmp_path / "whole")
    path, written = tmp_path / "journal", []
    write_line = journal.write_line

    def full(*inputs: object) -> int:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(inputs)
        return write_line(*inputs)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "write_line", full)
        with pytest.raises(e3.Eagle3RefError, match="No space left on device.*Mend that"):
            answers(pair, path)
    found, done = answers(pair, path)
    assert found == whole
    assert done[0].num_rounds == 2


def test_a_folder_that_is_not_there_is_refused(pair, tmp_path):
    """Catches answers that are generated before anybody finds that they cannot be kept."""
    with pytest.raises(e3.Eagle3RefError, match="No such file or directory"):
        answers(pair, tmp_path / "nowhere" / "journal")


_CHILD = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
from answering import Pair, TREE, WARM
import eagle3ref as e3
pair = object.__new__(Pair)
folder = Path({folder!r})
pair.target = e3.load_target(folder / "target", dtype=torch.float64)
pair.draft = e3.load_draft(folder / "draft", target=pair.target, capture_points=(2, 3, 4), dtype=torch.float64)
prompts = [torch.tensor(prompt) for prompt in {prompts}]
print("ready", flush=True)
pair.answers(prompts=prompts, journal=Path({path!r}), draft=pair.draft, tree=TREE, sampling=WARM, max_new_tokens=60,
             on_round=lambda done: print(done.num_rounds, flush=True))
"""


@pytest.mark.slow
def test_a_process_killed_in_the_middle_of_a_round_loses_only_that_round(pair, tmp_path):
    """Catches what an exception between two rounds cannot show: lines that were not on the disk."""
    path, seen = tmp_path / "journal", []
    script = _CHILD.format(
        tests=str(Path(__file__).parent),
        folder=str(pair.folder.parent),
        prompts=[prompt.tolist() for prompt in pair.prompts],
        path=str(path),
    )
    for kill_after in (2, 5):
        child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(1 + kill_after)]
        child.send_signal(signal.SIGKILL)
        child.wait()
        seen.append(int(lines[-1]))
        assert len([line for line in path.read_bytes().splitlines()[1:] if json.loads(line + b" ")]) > seen[-1]
    assert seen[1] >= seen[0] + 4  # each call tells where it begins, too
    settings = {**SETTINGS["sampled-tree"], "max_new_tokens": 60}
    assert answers(pair, path, **settings)[0] == answers(pair, tmp_path / "whole", **settings)[0]
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert NUM_NEW < 60

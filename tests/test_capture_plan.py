"""The plan of a streamed capture: what it counts, and how it and the progress are told."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from streamed_captures import POINTS, capture, contents, make_prompts, stream
from tiny import NUM_LAYERS, target_folder
from typer.testing import CliRunner

import eagle3ref as e3
from eagle3ref.cli import app
from eagle3ref.cli.options import parse_memory
from eagle3ref.report.plan import plan_report
from eagle3ref.report.progress import LayerProgress
from eagle3ref.report.style import duration
from eagle3ref.trace import CapturePlan, LayerDone, plan_capture
from eagle3ref.trace.passes import split_passes
from eagle3ref.trace.speeds import Speeds

SPEEDS = Speeds(read=1e9, dequantize=1e8, multiply=1e10, attend=1e9)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3ref.trace.speeds._SECONDS", 0.01)


def plan(checkpoint: Path, path: Path, prompts: list[e3.Prompt] | None = None, **settings: object) -> CapturePlan:
    chosen = {"capture_points": POINTS, "max_new_tokens": 5, "final_hidden_state": True, **settings}
    return plan_capture(stream(checkpoint), make_prompts() if prompts is None else prompts, path, **chosen)


def printed(found: CapturePlan) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_report(found, SPEEDS, "the torch dequantizer"))
    return console.file.getvalue()


def test_a_plan_counts_what_is_left_and_writes_nothing(checkpoint, tmp_path):
    """Catches passes that are done counted again, layers counted twice, and a plan that makes files."""
    path = tmp_path / "t"
    before = plan(checkpoint, path, batch_size=3)
    assert not path.exists()
    assert [cost.num_tokens for cost in before.passes] == [6 + 3 + 12, 4 + 14 + 5]
    assert (before.layers_done, before.unanswered, before.rounds) == (0, 0, 0)

    class StopError(Exception):
        pass

    def stop(done: LayerDone) -> None:
        if (done.number, done.layer) == (1, 3):
            raise StopError

    with pytest.raises(StopError):
        capture(stream(checkpoint), path, batch_size=3, on_layer=stop)
    files = contents(path)
    within = plan(checkpoint, path, batch_size=3)
    assert [cost.num_tokens for cost in within.passes] == [4 + 14 + 5]
    assert within.layers_done == 3
    assert within.flops == round(within.passes[0].flops * (NUM_LAYERS - 3) / NUM_LAYERS)
    assert within.disk_needed < before.disk_needed
    assert contents(path) == files
    capture(stream(checkpoint), path, batch_size=3)
    assert plan(checkpoint, path, batch_size=3).passes == ()
    assert "nothing" in printed(plan(checkpoint, path, batch_size=3))


def test_bytes_to_read_are_those_that_are_read(checkpoint, tmp_path):
    """Catches a plan of another reading than the one that follows."""
    found = plan(checkpoint, tmp_path / "t")
    target = stream(checkpoint)
    capture(target, tmp_path / "t")
    embedded = sum(len(prompt.tokens) + len(prompt.answer) for prompt in make_prompts()) * 32 * 2
    assert target.bytes_read <= found.bytes_to_read <= target.bytes_read + embedded + 1000


def test_what_decides_is_named(checkpoint, tmp_path):
    """Catches the times of one kind of work told as another's, and reading added to what goes on beside it."""
    found = plan(checkpoint, tmp_path / "t", make_prompts(num_open=2))
    seconds, work = found.seconds(SPEEDS), found.work()
    assert seconds["read"] == found.bytes_to_read / 1e9
    assert work["multiply"] + work["attend"] == found.flops
    assert seconds["multiply"] + seconds["attend"] == work["multiply"] / 1e10 + work["attend"] / 1e9
    experts = 6 * 4 * 3 * 32 * 32  # layers, experts, matrices of each
    assert work["dequantize"] == pytest.approx(experts * found.passes[0].experts_per_layer / 4, rel=1e-3)
    text = printed(found)
    assert "2 prompts have none: up to 5 rounds come first" in text
    longest = max(("dequantize", "multiply", "attend"), key=lambda kind: seconds[kind])
    assert f"to {longest} takes the longest" in text
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_report(found, replace(SPEEDS, read=1.0), "-"))
    assert "reading takes the longest" in console.file.getvalue()


def test_answers_count_in_every_pass(checkpoint, tmp_path):
    """Catches rounds counted once though each pass has its own, and their time left out, which is most of it."""
    open_prompts = [e3.Prompt(prompt.id, prompt.tokens) for prompt in make_prompts()]
    together, apart = (plan(checkpoint, tmp_path / "t", open_prompts, batch_size=size) for size in (6, 2))
    assert (len(together.answering), len(apart.answering), apart.unanswered) == (1, 3, 6)
    slow = replace(SPEEDS, read=1.0)
    bytes_read = sum(cost.bytes_to_read for cost in apart.answering)
    assert apart.answering_seconds(slow) == 5 * bytes_read > together.answering_seconds(slow)
    text = printed(apart)
    assert "rounds come first in each of 3 passes" in text
    assert "for the answers before" in text
    assert "for the answers before" not in printed(plan(checkpoint, tmp_path / "t"))


def test_speeds_are_of_this_work(checkpoint, tmp_path):
    """Catches a sample that fails on a small checkpoint, and rates that are no rates."""
    speeds = plan(checkpoint, tmp_path / "t").measure()
    assert all(0 < rate < 1e14 for rate in vars(speeds).values())


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.none() | st.integers(1, 8),
    st.integers(1, 100),
)
def test_every_prompt_is_in_one_pass_that_fits(lengths, batch_size, most):
    """Catches prompts lost or doubled at a cut, passes over the bound, and passes cut sooner than they need be."""
    groups = list(split_passes(len(lengths), batch_size, lambda places: sum(lengths[i] for i in places) <= most))
    assert [i for places in groups for i in places] == list(range(len(lengths)))
    for places in groups:
        total = sum(lengths[i] for i in places)
        assert len(places) == 1 or (total <= most and len(places) <= (batch_size or 99))
        if places.stop < len(lengths):
            assert total + lengths[places.stop] > most or len(places) == batch_size


def test_passes_leave_room_for_the_cache_of_their_answers(checkpoint, tmp_path, monkeypatch):
    """Catches a pass that fits and whose answers do not: all rows of the cache are as long as the longest prompt's."""
    limit = {False: 1000, True: 40}
    monkeypatch.setattr(
        "eagle3ref.target.streaming.StreamedTarget.max_tokens", lambda *_, per_token=0: limit[per_token > 0]
    )
    lengths = [5, 1, 9, 3, 12, 2]  # each gets 5 new tokens and the root of a round
    prompts = [e3.Prompt(prompt.id, prompt.tokens) for prompt in make_prompts()]
    found = plan(checkpoint, tmp_path / "t", prompts)
    assert [cost.num_sequences for cost in found.passes] == [2, 2, 2]
    assert (5 + 6) * 3 <= 40 < (9 + 6) * 3
    assert [cost.num_tokens for cost in found.passes] == [sum(lengths[i : i + 2]) + 10 for i in (0, 2, 4)]
    assert len(plan(checkpoint, tmp_path / "t", make_prompts()).passes) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8GiB", 2**33), ("8 gib", 2**33), ("1.5GB", 1_500_000_000), ("512MiB", 2**29), ("4096", 4096), (None, None)],
)
def test_sizes_are_read(text, expected):
    """Catches GB taken for GiB: 7 % of the memory of a machine."""
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "8 GX", "8G iB", "1e9", "0", "8GiB8", "nan"])
def test_bad_sizes_are_refused(text):
    """Catches a bound of a few bytes, or none, where the text meant something else."""
    with pytest.raises(e3.Eagle3RefError, match="reading --memory.*such as 8GiB"):
        parse_memory(text)


def test_durations_read_as_people_say_them():
    """Catches units that do not follow from each other: 60 s, 1 h 60 min."""
    texts = [duration(seconds) for seconds in (0.34, 9.96, 59.4, 59.6, 3599.4, 3599.6, 12_000)]
    assert texts == ["0.3 s", "10.0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "3 h 20 min"]


def test_progress_counts_only_layers_of_this_run(checkpoint, tmp_path, monkeypatch):
    """Catches rates that take the layers of an earlier run, or the time of the answers, for this run's."""
    clock = [0.0]
    monkeypatch.setattr("eagle3ref.report.progress.time.monotonic", lambda: clock[0])
    found = replace(plan(checkpoint, tmp_path / "t"), layers_done=3)
    console = Console(file=io.StringIO())
    progress = LayerProgress(console)
    progress.begin(found)
    for layer, seconds, num_bytes in ((3, 5.0, 0), (4, 7.0, 4_000_000), (5, 9.0, 8_000_000)):
        clock[0] = seconds
        progress.on_layer(LayerDone(0, 1, layer, NUM_LAYERS, 70, num_bytes))
    task = progress.tasks[0]
    assert (task.completed, task.total) == (5, NUM_LAYERS)
    assert task.fields["rates"] == "2.0 MB/s 5.0 tok/s"  # 70 tokens through 2 of 7 layers in 4 seconds
    lines = (
        console.file.getvalue().splitlines()
    )  # no terminal: a capture of hours tells its layers to a log all the same
    assert [line.split(":")[0] for line in lines] == [f"pass 1 of 1, layer {layer}" for layer in (3, 4, 5)]
    assert "2.0 MB/s 5.0 tok/s" in lines[-1]


def test_the_command_plans_captures_and_refuses(checkpoint, tmp_path, monkeypatch):
    """Catches options that do not reach the target, a plan that is not printed, and a trace begun by --plan."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"tokens": [1, 2, 3], "answer_tokens": [4, 5]}\n{"tokens": [7]}\n')
    start = ["capture", str(checkpoint), str(prompts), "-o", str(tmp_path / "t"), "--capture-points", "1,2"]
    start += ["--max-new-tokens", "2", "--dtype", "float32"]
    streamed = [*start, "--weights", "stream", "--memory", "4GiB"]

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, done.output

    status, text = run(*streamed, "--plan")
    assert (status, "1 over 7 layers: 2 sequences, 8 tokens" in text) == (0, True), text
    assert not (tmp_path / "t").exists()
    status, text = run(*streamed)
    assert (status, "expected" in text, "off-argmax share" in text) == (0, True, True), text
    monkeypatch.setattr("eagle3ref.trace.plan.measure_speeds", None)  # nothing is left: nothing to sample
    status, text = run(*streamed)
    assert (status, "nothing" in text) == (0, True), text
    capture_again = e3.capture(
        e3.load_target(checkpoint, dtype=torch.float32),
        e3.read_prompts(prompts, None)[0],
        tmp_path / "resident",
        capture_points=(1, 2),
        max_new_tokens=2,
    )
    assert [entry.sha256 for entry in e3.Trace.open(tmp_path / "t").entries] == [
        entry.sha256 for entry in capture_again.entries
    ]
    assert run(*start, "--plan")[0] == 2
    assert run(*start, "--memory", "1GiB")[0] == 2
    assert run(*start, "--speculate")[0] == 2
    assert run(*streamed[:-1], "lots")[0] == 2

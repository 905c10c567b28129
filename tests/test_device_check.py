"""The device check: what it would catch on a GPU, that it outlives a kernel that does not, and a whole rehearsal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import device_check
import pytest
import torch
from device import calls, clock, int4, judge, process, run, trees
from device.recorder import Case, Recorder, Row
from device.setting import Setting

from eagle3ref.config import TreeConfig
from eagle3ref.kernels import get_ops

BENCHMARKS = Path(device_check.__file__).parent
REHEARSAL = Setting("cpu", rehearsed=True, timing=False)


def kinds(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def run_made_part(monkeypatch, tmp_path, cases: list[Case], seconds: float = 60.0, timing: bool = False) -> list[Row]:
    """Run a part that exists in this process only; a fork finds it, as the rehearsal's do."""
    module = ModuleType("device.made")
    module.cases = lambda _: cases
    monkeypatch.setitem(sys.modules, "device.made", module)
    setting = Setting("cpu", rehearsed=True, timing=timing)
    return process.run_part("made", setting, tmp_path / "made.jsonl", seconds)


def passing(recorder: Recorder) -> None:
    recorder.check("passing", True)


def raising(_: Recorder) -> None:
    raise RuntimeError("illegal memory access")


def dying(_: Recorder) -> None:
    os._exit(7)


def hanging(_: Recorder) -> None:
    time.sleep(600)


def test_a_case_that_raises_or_kills_its_process_does_not_take_the_others_along(monkeypatch, tmp_path):
    """Bug: one bad kernel hides what every other one would have shown, or passes because nothing was written."""
    cases = [Case("a", passing), Case("b", raising), Case("c", passing), Case("d", dying), Case("e", passing)]
    rows = run_made_part(monkeypatch, tmp_path, cases)
    assert len(kinds(rows, "check")) == 3
    assert judge.failures(rows) == ["b: RuntimeError: illegal memory access", "d: its process ended with status 7"]
    assert "raise RuntimeError" in kinds(rows, "failure")[0]["where"]


def test_a_case_that_hangs_is_killed_and_the_rest_is_named(monkeypatch, tmp_path):
    """Bug: the script never ends, or a check that was not reached counts as passed."""
    cases = [Case("a", passing), Case("b", hanging), Case("c", passing), Case("d", passing, is_check=False)]
    rows = run_made_part(monkeypatch, tmp_path, cases, seconds=3.0)
    assert judge.failures(rows) == ["b: out of time", "c: out of time"]
    assert "out of time, not measured: d" in judge.table(rows)


def test_a_process_that_is_killed_while_it_starts_leaves_its_cases_unreached(monkeypatch, tmp_path):
    """Bug: an importing process out of time reads as a kernel that died, and the cases behind it are forgotten."""
    module = ModuleType("device.made")
    module.cases = lambda _: time.sleep(600)
    monkeypatch.setitem(sys.modules, "device.made", module)
    rows = process.run_part("made", REHEARSAL, tmp_path / "rows.jsonl", 0.5)
    assert judge.failures(rows) == ["made: out of time"]


def test_the_round_of_times_runs_no_checks(monkeypatch, tmp_path):
    """Bug: times are taken while checks run, or are missing."""
    cases = [Case("a", passing), Case("b", lambda recorder: recorder.write("time", name="b"), is_check=False)]
    rows = run_made_part(monkeypatch, tmp_path, cases, timing=True)
    assert [row["kind"] for row in rows] == ["plan", "begin", "time", "end"]


def test_a_part_that_cannot_begin_is_a_failure(tmp_path):
    """Bug: a typo in an import makes a part vanish without a word."""
    rows = process.run_part("no_such_part", REHEARSAL, tmp_path / "rows.jsonl", 60.0)
    assert judge.failures(rows) == ["no_such_part: its process ended with status 1 before case 0"]
    late = process.run_part("fusion", REHEARSAL, tmp_path / "late.jsonl", -1.0)
    assert judge.failures(late) == ["fusion: out of time"]


def test_a_part_that_is_done_waits_for_no_other(monkeypatch, tmp_path):
    """Bug: one slow part, and a run that is cut short, cost the results of those that were ready long before."""
    ready = threading.Event()

    def run_part(part: str, *_: object) -> list[Row]:
        assert part == "quick" or ready.wait(20.0)
        return [{"part": part}]

    monkeypatch.setattr(run, "run_part", run_part)
    setting = Setting("cpu", rehearsed=False, timing=False)
    found = run._side_by_side(["slow", "quick"], setting, tmp_path, 9.0)
    assert next(found) == [{"part": "quick"}]
    ready.set()
    assert next(found) == [{"part": "slow"}]


def test_half_a_line_of_a_killed_process_is_no_row(tmp_path):
    """Bug: one torn write loses the rows of the whole part."""
    recorder = Recorder(tmp_path / "rows.jsonl")
    recorder.check("whole", True)
    with recorder.path.open("a") as file:
        file.write('{"kind": "che')
    assert [row["name"] for row in recorder.rows()] == ["whole"]


@pytest.mark.parametrize(
    ("spoil", "passes"),
    [
        (lambda out, _: out, True),
        (lambda out, noise: out + 3 * noise, False),
        (lambda out, _: out.index_fill(1, torch.tensor([5]), 0.0), False),
        (lambda out, _: out.clone().fill_(float("nan")), False),
        (lambda out, _: out.bfloat16().float(), False),
    ],
)
def test_a_wrong_kernel_does_not_pass(monkeypatch, tmp_path, spoil, passes):
    """Bug: a norm or a tolerance that lets through a lost column, a NaN, or sums in a lower precision."""
    eager = get_ops("torch")
    x, weight = torch.randn(6, 512), torch.randn(64, 512)
    call = calls.Call("fuse", ([x], weight))
    noise = eager.fuse([x], weight) - eager.fuse([x.double()], weight.double()).float()
    faked = {"torch": eager, "triton": replace(eager, fuse=lambda *given: spoil(eager.fuse(*given), noise))}
    monkeypatch.setattr(calls, "get_ops", faked.__getitem__)
    recorder = Recorder(tmp_path / "rows.jsonl")
    calls.check_case("fuse", lambda: call).run(recorder)
    assert [row["passed"] for row in recorder.rows()] == [passes]


def test_the_oracle_keeps_what_belongs_to_the_number_format():
    """Bug: INT4 scales widened before they are multiplied, so that the oracle has other weights than any engine."""
    torch.manual_seed(0)
    call = int4.product(REHEARSAL, 4, (32, 32), torch.float32)
    x, words, scale = call.arguments
    columns = torch.stack([(words >> 4 * i & 15) - 8 for i in range(8)], -1).flatten(1)
    weight = (columns * scale.float()).bfloat16().double()  # one group of 32 a row
    torch.testing.assert_close(call.exact(), x.double() @ weight.T)
    assert not torch.equal(call.exact(), x.double() @ (columns * scale.double()).T)


def test_a_tree_that_differs_in_one_integer_is_not_the_same():
    """Bug: a comparison that looks at some fields, or takes int32 for int64."""
    tree = TreeConfig(3, 2, 5)
    candidates = trees.random_candidates(REHEARSAL, tree)
    lengths = torch.arange(len(candidates.scores))
    built = get_ops("torch").build_tree(candidates, root_tokens=lengths, prefix_lengths=lengths, num_draft_tokens=5)
    assert trees.same(built, built)
    for name in ("tokens", "parents", "depths", "positions", "tree_mask"):
        value = getattr(built, name)
        for changed in (value.clone(), value.to(torch.int32)):
            changed[-1, -1] = ~changed[-1, -1] if changed.dtype == torch.bool else changed[-1, -1] + 1
            other = type(built)(**{**vars(built), name: changed})
            assert not trees.same(other, built)


def rows_of_times() -> list[Row]:
    """A device that copies 4 TB/s and multiplies 800 TFLOP/s; a call that is bound by each, and a loop."""
    timed = {"kind": "time", "goal": 0.85, "part": "fusion"}
    small = {**timed, "name": "small", "bytes": 3_400_000_000, "flops": 1}
    large = {**timed, "name": "large", "bytes": 1, "flops": 400_000_000_000}
    aims = {"graph_over_kernels": 1.15, "eager_over_graph": 2.0}
    loop = {"kind": "loop", "name": "loop", "propose_ms": 9.0, "eager_ms": 4.0, "graph_ms": 2.5, "kernels_ms": 2.0}
    return [
        {"kind": "device", "name": "A GPU"},
        {"kind": "ceiling", "name": "copy", "ms": 1.0, "bytes": 4_000_000_000},
        {"kind": "ceiling", "name": "matmul", "ms": 1.0, "flops": 800_000_000_000},
        {**small, "arm": "ours", "ms": None},  # of the first round
        {**small, "arm": "ours", "ms": 1.0},
        {**small, "arm": "eager", "ms": 2.0},
        {**large, "arm": "ours", "ms": 1.0},
        {**large, "arm": "compiled", "ms": 0.75},
        {"kind": "tile", "name": "small", "tile": "slow", "ms": 1.2},
        {"kind": "tile", "name": "small", "tile": "quick", "ms": 0.9},
        {"kind": "tile", "name": "large", "tile": "alike", "ms": 0.99},
        {**loop, "goals": aims},
    ]


def test_shares_goals_and_the_table():
    """Bug: a share of the wrong ceiling, a missed goal printed as met, or a time of the first round that counts."""
    small, large = judge.times(rows_of_times())
    assert (small["bound"], small["share"], small["gb_per_s"], small["eager"]) == ("copy", 0.85, 3400.0, 2.0)
    assert (large["bound"], large["share"], large["tflop_per_s"]) == ("matmul", 0.5, 400.0)
    assert judge.goals(rows_of_times()) == [
        ("small: 85% of the copy's rate, goal 85%", True),
        ("loop: graph / its kernels 1.25, goal at most 1.15", False),
        ("loop: eager / graph 1.60, goal at least 2.0", False),
    ]
    table = judge.table(rows_of_times())
    assert judge.faster_tiles(rows_of_times()) == ["small takes 0.9000 ms with quick, 1.0000 ms by default"]
    assert "faster than the default: small" in table
    assert "copy: 4.00 T/s" in table
    assert "MISSED  loop: eager / graph 1.60" in table
    assert "FAILED" not in table
    assert judge.failures(rows_of_times()) == []


def test_without_ceilings_nothing_is_a_share():
    """Bug: a division by a rate that was not measured."""
    rows = [row for row in rows_of_times() if row["kind"] != "ceiling"]
    assert judge.goals(rows)[0] == ("small: not measured of the copy's rate, goal 85%", None)
    assert "3400" in judge.table(rows)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    """Bug: a traceback, or a check that passes because there was nothing to check on."""
    monkeypatch.setattr(sys, "argv", ["device_check.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_check.main() == 2
    assert capsys.readouterr().err == (
        "checking the kernels: found no CUDA device; expected one. Use --rehearse on the CPU.\n"
    )


def test_times_are_medians_of_calls_that_find_a_cold_cache(monkeypatch):
    """Bug: the reading of other numbers inside of the timed span, a warm-up that counts, or one slow repeat that
    decides; or an L2 cache full of written lines, which the work would have to wait for."""
    said: list[str] = []
    clocks = iter(range(1, 10**6))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("event")
            self.at = next(clocks)

        def synchronize(self) -> None:
            said.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return 100.0 if end.at == 6 else 10.0 * (end.at - self.at)  # the third repeat is slow

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    monkeypatch.setattr(clock, "_OTHER_BYTES", 16)
    monkeypatch.setattr(torch.Tensor, "sum", lambda _: said.append("read"))
    milliseconds = clock.cold_ms(Setting("cpu", rehearsed=False, timing=True), lambda: said.append("work"))
    assert milliseconds == 10.0
    assert said[:3] == ["work"] * 3
    repeats = said[3:]
    assert repeats == ["wait", "read", "event", "work", "event", "wait"] * (len(repeats) // 6)
    assert len(repeats) // 6 == 1 + 15  # one to estimate, then as many as fit into 0.15 s


@pytest.mark.slow
def test_on_a_device_each_part_is_a_new_process(tmp_path):
    """Bug: a process that a fork has robbed of its device, or a part that only the parent can import."""
    rows = process.run_part("native", Setting("cpu", rehearsed=False, timing=False), tmp_path / "rows.jsonl", 300.0)
    assert judge.failures(rows) == []
    assert kinds(rows, "plan")
    assert len(kinds(rows, "begin")) == len(kinds(rows, "end")) > 0


@pytest.mark.slow
def test_every_line_runs_in_a_rehearsal():
    """Bug: the script fails on its first GPU for a typo, or leaves results of a rehearsal behind."""
    results = BENCHMARKS / "results"
    before = {path: path.stat().st_mtime_ns for path in results.glob("device_check_*")}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(BENCHMARKS / "device_check.py"), "--rehearse"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks: " in done.stderr
    assert "times of ceilings: " in done.stderr
    parts = ("fuse", "int4", "attention", "most probable", "build_tree", "gqa", "one round", "rehearsal")
    assert [part for part in parts if part not in done.stdout] == []
    passed, of, total = done.stdout.splitlines()[1].split()[:3]
    assert (passed, of) == (total, "of")
    assert int(total) > 40
    assert {path: path.stat().st_mtime_ns for path in results.glob("device_check_*")} == before

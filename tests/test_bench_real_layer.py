"""The benchmark at real size, at small size: its checkpoint, its truth, its judgment, and the page that shows it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import bench_real_layer
import pytest
import torch
from real_layer import checkpoint, judge, rates, tables
from real_layer.exact import LayerFormulas
from real_layer.sampler import Sampler
from safetensors.torch import load_file, save_file

from eagle3ref.config import KimiK25Config
from eagle3ref.target.checkpoint import open_census
from eagle3ref.target.kimi_k25 import KimiK25Target

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "bench_real_layer_cpu.json"
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 12,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "vocab_size": 320,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("library"), **SMALL)


@pytest.fixture(scope="module")
def streams(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``real_layer.stream`` leaves, made by the resident target in fp32."""
    target = KimiK25Target.from_folder(folder, dtype=torch.float32)
    texts = torch.randint(320, (50,), generator=torch.Generator().manual_seed(0)).split(20)
    current = target.embed(texts)
    kept = {f"{i}.0": current[i].clone() for i in (0, 2)}
    for layer in target.stream_layers(current):
        kept |= {f"{i}.{layer}": current[i].clone() for i in (0, 2)}
    path = tmp_path_factory.mktemp("streams") / "streams.safetensors"
    save_file(kept, path)
    return path


def names_in_file_order(path: Path) -> list[str]:
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_the_real_plan_has_the_real_sizes(tmp_path):
    """Catches a width or a dtype that is not Kimi-K2.5's: the figures would be of another layer."""
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.config_json()))
    dense, experts, rest = checkpoint.plan(KimiK25Config.from_folder(tmp_path), seed=0)
    sizes = [sum(tensor.num_bytes for tensor in shard) for shard in (dense, experts, rest)]
    assert [round(size / 1e9, 3) for size in sizes] == [0.995, 9.809, 0.235]
    assert len(experts) == 384 * 3 * 3 + 14
    packed = next(tensor for tensor in experts if tensor.name.endswith("experts.383.down_proj.weight_packed"))
    assert (packed.dtype, packed.shape) == ("I32", (7168, 256))


def test_it_is_a_checkpoint_that_the_library_takes(folder):
    """Catches a tensor that is missing or unknown, before 10 GB of them are written."""
    census = open_census(folder)
    assert census.num_tensors == 3 + 12 + 14 + 12 * 9
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) > census.num_bytes


def test_library_order_is_the_library_s(folder, tmp_path):
    """Catches an order of the file that no real shard has."""
    path = folder / "model-00002-of-000003.safetensors"
    save_file(load_file(path), tmp_path / "again.safetensors")
    assert names_in_file_order(path) == names_in_file_order(tmp_path / "again.safetensors")


def test_both_orders_hold_the_same_model(folder, tmp_path):
    """Catches numbers that depend on the order in which they are written: bits could not be compared."""
    other = checkpoint.write(tmp_path, order="numbered", **SMALL)
    file = "model-00002-of-000003.safetensors"
    assert names_in_file_order(other / file) != names_in_file_order(folder / file)
    ours, theirs = all_tensors(folder), all_tensors(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_experts_differ_and_are_normal(folder):
    """Catches experts that a mix-up would not change, and weights that blow activations up."""
    tensors = all_tensors(folder)
    packed = [tensor.flatten() for name, tensor in tensors.items() if name.endswith("gate_proj.weight_packed")]
    assert len(packed) == 12
    assert len({tuple(tensor.tolist()) for tensor in packed}) == 12
    stream = torch.randn(8, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    output = LayerFormulas(folder, 1, torch.float64).output(stream, 7)
    assert 0.3 < float(output.std()) < 10


def test_the_formulas_are_the_reference(folder):
    """Catches a truth that is wrong; the two share no code. fp32 tables of angles are all that may part them."""
    target = KimiK25Target.from_folder(folder, dtype=torch.float64)
    streams = target.forward(torch.arange(20)[None], capture_points=(0, 1, 2)).aux_hidden_states
    for layer in (0, 1):
        exact = LayerFormulas(folder, layer, torch.float64)
        for row in (0, 7, 19):
            torch.testing.assert_close(
                exact.output(streams[layer][0], row), streams[layer + 1][0, row], rtol=0, atol=1e-7
            )


def test_a_right_pass_is_right(folder, streams):
    """Catches a judge that finds fault with rounding, or looks at fewer tokens than it was told to."""
    for check in judge.check_rows(folder, streams, torch.float32, num_layers=2, num_rows=4):
        assert check["right"], check
        assert check["tokens"] == 4
        assert 0 < check["error"] < 1e-5


@pytest.mark.parametrize("change", ["every number a little", "another row", "the stream before"])
def test_a_wrong_pass_is_wrong(folder, streams, tmp_path, change):
    """Catches a judge that is content with anything: an error of four roundings, a neighbor's row, a layer left out."""
    tensors = load_file(streams)
    for sequence in (0, 2):
        name = f"{sequence}.2"
        tensors[name] = {
            "every number a little": tensors[name] * (1 + 4 * 2**-23),
            "another row": tensors[name].roll(1, 0),
            "the stream before": tensors[f"{sequence}.1"].clone(),
        }[change]
    save_file(tensors, tmp_path / "streams.safetensors")
    first, second = judge.check_rows(folder, tmp_path / "streams.safetensors", torch.float32, num_layers=2, num_rows=4)
    assert first["right"]
    assert not second["right"]


def test_close_calls_are_passed_over_and_counted(folder, streams, tmp_path, monkeypatch):
    """Catches a token that rounding may send elsewhere and that is called wrong, or one that vanishes silently."""
    exact, rows = LayerFormulas(folder, 1, torch.float64), load_file(streams)
    save_file({f"0.{layer}": rows[f"2.{layer}"] for layer in range(3)}, tmp_path / "one.safetensors")
    margins = sorted(exact.routed(rows["2.1"], row).margin for row in range(10))
    monkeypatch.setattr(judge, "_CLOSE_CALL", {torch.float32: margins[3]})
    dense, experts = judge.check_rows(folder, tmp_path / "one.safetensors", torch.float32, num_layers=2, num_rows=10)
    assert (dense["tokens"], dense["passed_over"], dense["right"]) == (10, 0, True)
    assert (experts["tokens"], experts["passed_over"], experts["right"]) == (6, 4, False)  # too few were looked at


def test_a_bare_read_reads_it_all(folder):
    """Catches a ceiling that was measured over a part of the file."""
    path = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    begun = time.perf_counter()
    rate = rates.raw_read(path, direct=False)
    assert path.stat().st_size / rate < time.perf_counter() - begun


def test_a_dropped_file_is_not_in_memory(folder):
    """Catches a cold read that is none."""
    all_tensors(folder)
    for path in folder.glob("*.safetensors"):
        path.read_bytes()
    assert rates.share_in_memory(folder) > 0.9
    rates.drop_cache(folder)
    assert rates.share_in_memory(folder) < 0.1


def test_dequantizers_agree_before_they_are_timed(monkeypatch):
    """Catches a rate of an arm that does other work."""
    found = rates.dequantization(8, 64, "cpu", repeats=1)
    assert found["times_int32_shifts"]["int32 shifts"] == 1
    assert set(found["weights_per_s"]) >= {"int32 shifts", "byte view"}
    arms = {**rates.dequantizers("cpu"), "halved": lambda *given: rates.dequantize_with_shifts(*given) / 2}
    monkeypatch.setattr(rates, "dequantizers", lambda _: arms)
    with pytest.raises(SystemExit, match="other bits than int32 shifts: halved"):
        rates.dequantization(8, 64, "cpu", repeats=1)


def test_the_sampler_sees_what_threads_do():
    """Catches shares of the wrong thread, or work under the wrong name."""

    def dequantize_for_a_while() -> None:
        ends = time.perf_counter() + 0.15
        while time.perf_counter() < ends:
            pass

    done = threading.Event()
    reader = threading.Thread(target=done.wait)
    reader.start()
    with Sampler() as sampler:
        dequantize_for_a_while()
    done.set()
    reader.join()
    shares = sampler.shares()
    assert shares["computing thread"]["dequantize"] > 0.9
    assert shares["reading thread"] == {"wait for room": 1.0}


def found(**changes: Any) -> dict[str, Any]:
    """Results with one pass: a layer of 10 GB in 5 s, the bare read twice as fast."""
    steps = [{"layer": 0, "seconds": 1.0, "bytes": 10**9}, {"layer": 1, "seconds": 5.0, "bytes": 10**10}]
    one = {"name": "256 tokens", "num_tokens": 256, "like": "", "steps": steps, "score_seconds": 0.1}
    one |= {"raw_bytes_per_s": 4e9, "peak_bytes": 3 * 2**30, "checks": [{"layer": 1, "right": True}], **changes}
    return {"setting": {"memory_bound": 4 * 2**30}, "passes": [one]}


def test_the_full_pass_is_sixty_layers_the_dense_one_and_the_head():
    """Catches a layer that is counted twice, and a head of the small vocabulary."""
    (row,) = tables.full_passes(found())
    assert row["seconds"] == pytest.approx(1 + 60 * 5 + 0.1 * 163840 / 8192)
    assert row["arithmetic"] == "1.0 s + 60 x 5.0 s + 2.0 s = 5.0 min"
    assert row["tokens_per_s"] == pytest.approx(256 / 303)
    assert tables.share_of_raw(found()["passes"][0]) == 0.5


def test_what_is_wrong_is_said():
    """Catches a broken bound, a wrong token or other bits that leave the status at 0."""
    assert tables.failures(found()) == []
    assert "4.50 GiB breaks the bound" in tables.failures(found(peak_bytes=int(4.5 * 2**30)))[0]
    assert "layer 1 is wrong" in tables.failures(found(checks=[{"layer": 1, "right": False}]))[0]
    assert "other bits than x" in tables.failures(found(like="x", same_bits=False))[0]


@pytest.mark.slow
def test_the_whole_benchmark_runs_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    """Catches a script that fails at real size for a typo, after ten minutes, and a checkpoint that is left behind."""
    monkeypatch.setattr(checkpoint, "TEXT_CONFIG", {**checkpoint.TEXT_CONFIG, **SMALL})
    for name, count in (("FEW", 40), ("SOME", 41), ("MANY", 600)):
        monkeypatch.setattr(bench_real_layer, name, count)
    arguments = ["--experts", "12", "--repeats", "1", "--threads", "1", "--scratch", str(tmp_path)]
    monkeypatch.setattr(rates, "_GEMM_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["bench_real_layer.py", *arguments])
    before = {path: path.stat().st_mtime_ns for path in RESULT.parent.glob("bench_real_layer_*")}
    assert bench_real_layer.main() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("40 tokens, numbered", "600 tokens", "byte view", "plain PyTorch's"))
    assert "FAILED" not in shown
    assert list(tmp_path.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in RESULT.parent.glob("bench_real_layer_*")} == before


@pytest.mark.slow
def test_a_pass_that_is_refused_ends_the_benchmark_and_leaves_nothing(tmp_path):
    """Catches a checkpoint of 11 GB that stays on the disk after an error."""
    script, arguments = ROOT / "benchmarks" / "bench_real_layer.py", ["--experts", "8", "--memory", "0.01"]
    code = (
        "import sys, runpy; from real_layer import checkpoint; "
        f"checkpoint.TEXT_CONFIG |= {SMALL!r}; sys.argv = {[str(script), *arguments, '--scratch', str(tmp_path)]!r}; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    environment = {"PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT / 'src'}", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert "memory bound" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_what_was_measured():
    """Catches figures on the page that no run gave, and a run that the page does not show."""
    page = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    results = json.loads(RESULT.read_text(encoding="utf-8"))
    for name, table in tables.all_tables(results).items():
        assert f"<!-- {name} -->\n{table}\n<!-- end -->" in page, name
    assert tables.failures(results) == []


def test_the_kept_run_is_of_the_real_layer():
    """Catches results of a quick look, of a bound that is not the stated one, or of too few tokens."""
    results = json.loads(RESULT.read_text(encoding="utf-8"))
    assert results["setting"]["experts"] == 384
    assert results["setting"]["memory_bound"] == 4 * 2**30
    assert min(one["num_tokens"] for one in results["passes"]) >= 256
    assert results["dequantization"]["times_int32_shifts"]["native"] >= 3

"""One layer of experts at Kimi-K2.5's real size, streamed from a disk under a memory bound: how fast, and how right.

    python benchmarks/bench_real_layer.py                     11 GB of disk for half an hour; see --scratch
    python benchmarks/bench_real_layer.py --experts 16        a quick look: the same widths, few experts
    python benchmarks/bench_real_layer.py --device cuda       where there is a GPU

A made-up checkpoint (the dense layer and one layer of 384 experts) is written, streamed cold by fresh processes, and
deleted again. Sampled tokens are held against fp64. At the real size it writes
benchmarks/results/bench_real_layer_<device>.json, which docs/streaming.md shows. Ends with status 1 if a token is
wrong, a bound was broken or bits differ.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from real_layer import checkpoint, rates, tables
from real_layer.costs import pass_costs
from real_layer.judge import check_rows
from safetensors.torch import load_file

import eagle3ref as e3

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "streaming.md"
REAL_EXPERTS = checkpoint.TEXT_CONFIG["n_routed_experts"]
FEW, SOME, MANY = 256, 1024, 10_000  # tokens of a pass


class Case(NamedTuple):
    """A pass that is made several times. ``like`` names the one whose bits it must have; "" asks for the fp64 check."""

    name: str
    num_tokens: int
    dtype: str
    dequantizer: str
    like: str = ""


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the checkpoint is deleted then, too
    torch.set_num_threads(arguments.threads)
    found = {"setting": setting_of(arguments), **machine_rates(arguments), "passes": []}
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="real-layer-") as scratch:
        found["plan"] = pass_costs(Path(scratch) / "whole")
        for order in checkpoint.ORDERS:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                print(f"writing the checkpoint, {order} order", file=sys.stderr)
                checkpoint.write(Path(folder), order=order, n_routed_experts=arguments.experts)
                found["passes"] += passes(Path(folder), Path(scratch), order, arguments)
    found["full_pass"] = tables.full_passes(found) if arguments.experts == REAL_EXPERTS else []
    print(tables.report(found))
    if arguments.experts == REAL_EXPERTS:
        keep(found, arguments.device.partition(":")[0])
    return 1 if tables.failures(found) else 0


def keep(found: dict[str, Any], device: str) -> None:
    """Write the results; the page shows those of a CPU."""
    (RESULTS / f"bench_real_layer_{device}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if device == "cpu":
        PAGE.write_text(tables.filled(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0 (cpu)")
    parser.add_argument("--memory", type=float, default=4.0, help="bound in GiB (4)")
    parser.add_argument("--experts", type=int, default=REAL_EXPERTS, help="routed experts of the layer (384)")
    parser.add_argument("--repeats", type=int, default=3, help="passes of each kind; the best counts (3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch (its own choice)")
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure (the temporary one)")
    return parser.parse_args()


def setting_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where and when, with what."""
    on_gpu = arguments.device.startswith("cuda")
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(arguments.device) if on_gpu else platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "versions": {"eagle3ref": e3.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "experts": arguments.experts,
        "memory_bound": int(arguments.memory * 2**30),
        "repeats": arguments.repeats,
    }


def machine_rates(arguments: argparse.Namespace) -> dict[str, Any]:
    """What dequantizing and multiplying could give, without a disk."""
    rows, columns = checkpoint.TEXT_CONFIG["moe_intermediate_size"], checkpoint.TEXT_CONFIG["hidden_size"]
    chosen = checkpoint.TEXT_CONFIG["num_experts_per_tok"]
    counts = [max(1, tokens * chosen // arguments.experts) for tokens in (FEW, SOME, MANY)]
    return {
        "dequantization": rates.dequantization(rows, columns, arguments.device),
        "flops_per_s": {
            str(dtype).removeprefix("torch."): rates.matrix_rates(counts, rows, columns, dtype, arguments.device)
            for dtype in (torch.bfloat16, torch.float32)
        },
    }


def cases(order: str, device: str) -> list[Case]:
    """What is passed over a checkpoint whose tensors lie in this order."""
    fastest = list(rates.dequantizers(device))[-1]
    first = Case(f"{FEW} tokens", FEW, "bfloat16", fastest)
    if order != checkpoint.ORDERS[0]:
        return [first._replace(name=f"{first.name}, {order}", like=first.name)]
    return [
        first,
        Case(f"{SOME} tokens", SOME, "bfloat16", fastest),
        Case(f"{MANY} tokens", MANY, "bfloat16", fastest),
        Case(f"{FEW} tokens, float32", FEW, "float32", fastest),
        Case(f"{FEW} tokens, byte view", FEW, "bfloat16", "byte view", like=first.name),
    ]


def passes(folder: Path, scratch: Path, order: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case, in turns; of each the best repeat, since what else a machine does only adds to it, and its check."""
    planned, largest = cases(order, arguments.device), max(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    runs: dict[str, list[dict[str, Any]]] = {case.name: [] for case in planned}
    for repeat in range(arguments.repeats):
        for case in planned:
            raw = max(rates.raw_read(largest, direct=direct) for direct in (False, True))
            done = one_pass(folder, scratch / f"{case.name}.json", case, arguments)
            runs[case.name].append({"raw_bytes_per_s": raw, **done})
            print(f"{case.name}, {repeat + 1}: {done['steps'][-1]['seconds']:.1f} s", file=sys.stderr)
    found = []
    for case in planned:
        best = min(runs[case.name], key=lambda run: run["steps"][-1]["seconds"])
        spread = [round(run["steps"][-1]["seconds"], 2) for run in runs[case.name]]
        peak = max(run["peak_bytes"] for run in runs[case.name])
        check = checked(folder, scratch, case)
        over_all = {"peak_bytes": peak, "share_of_raw": tables.share_of_raw(best), "all_seconds": spread}
        found.append({**case._asdict(), "order": order, **best, **over_all, **check})
    return found


def one_pass(folder: Path, result: Path, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """A pass in a process of its own."""
    setting = {
        "num_tokens": case.num_tokens,
        "dtype": case.dtype,
        "device": arguments.device,
        "memory": int(arguments.memory * 2**30),
        "dequantizer": case.dequantizer,
        "threads": arguments.threads,
    }
    command = [sys.executable, "-m", "real_layer.stream", str(folder), str(result)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run(command, input=json.dumps(setting), text=True, env=environment, check=True)
    done: dict[str, Any] = json.loads(result.read_text())
    return done


def checked(folder: Path, scratch: Path, case: Case) -> dict[str, Any]:
    """Against fp64, or against the bits of the pass that it must be like."""
    streams = scratch / f"{case.name}.safetensors"
    if not case.like:
        return {"checks": check_rows(folder, streams, getattr(torch, case.dtype), num_layers=2, num_rows=4)}
    ours, theirs = load_file(streams), load_file(scratch / f"{case.like}.safetensors")
    return {"same_bits": all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())}


if __name__ == "__main__":
    sys.exit(main())

"""Replay against live decoding on the same prompts, and replay time per token as the number of prompts grows.

    python benchmarks/bench_replay.py

Both arms count the same generated tokens; every ratio is of medians of interleaved repeats within one run. Nothing is
printed or written unless the replay's rounds equal those of live decoding, root by root.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import eagle3ref as e3

TREES = (e3.TreeConfig(3, 1, 4), e3.TreeConfig(5, 4, 16))
NUM_PROMPTS = (8, 16, 32, 64, 128, 256)  # the largest no longer fits one batch of the replay


def main() -> int:
    arguments = parse_arguments()
    try:
        results = measure(arguments)
    except e3.Eagle3RefError as error:
        print(error, file=sys.stderr)
        return 2
    if results is None:
        print("Replay and live decoding disagree on the rounds: no timing means anything.", file=sys.stderr)
        return 1
    print(table(results))
    path = Path(__file__).parent / "results" / f"bench_replay_{torch.device(arguments.device).type}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", type=Path, default=e3.nano.target_path(), help="folder (nano target)")
    parser.add_argument("--draft", type=Path, default=e3.nano.draft_path(), help="folder (nano draft)")
    parser.add_argument("--prompts", type=Path, default=e3.nano.prompts_path(), help="JSONL (nano prompts)")
    parser.add_argument("--num-prompts", type=int, default=16, help="how many of them are decoded live")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """All figures, or None when the two arms disagree."""
    check_files(arguments)
    # fp32: in bf16 another batch shape turns near-ties, and the arms would run different rounds.
    target = e3.load_target(arguments.target, device=arguments.device, dtype=torch.float32)
    draft = e3.load_draft(arguments.draft, target=target, device=arguments.device, dtype=torch.float32)
    prompts = e3.read_prompts(arguments.prompts, arguments.target)[0][: arguments.num_prompts]
    against_decode = []
    with tempfile.TemporaryDirectory() as folder:
        for tree in TREES:
            row = compare(target, draft, prompts, tree, Path(folder) / f"trace-{tree.topk}", arguments)
            if row is None:
                return None
            against_decode.append(row)
        many = repeated(prompts, max(NUM_PROMPTS))
        trace = e3.capture(
            target,
            many,
            Path(folder) / "many",
            capture_points=draft.capture_points,
            max_new_tokens=arguments.max_new_tokens,
        )
        growth = scale(trace, draft, TREES[0], arguments.repeats)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device_name(arguments.device),
        "threads": torch.get_num_threads(),
        "versions": {"eagle3ref": e3.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "dtype": "float32",
        "target": target.config.name,
        "max_new_tokens": arguments.max_new_tokens,
        "repeats": arguments.repeats,
        "replay_against_decode": against_decode,
        "replay_by_number_of_prompts": growth,
    }


def check_files(arguments: argparse.Namespace) -> None:
    for name in ("target", "draft", "prompts"):
        path = getattr(arguments, name)
        if not path.exists():
            raise e3.Eagle3RefError(
                "benchmarking replay",
                found=f"no {name} at {path}",
                expected="the nano pair and its prompts, or folders of your own",
                action=f"Make the pair with `python -m eagle3ref.nano.train`, or pass --{name}.",
            )


def compare(
    target: e3.Target,
    draft: e3.Eagle3Draft,
    prompts: list[e3.Prompt],
    tree: e3.TreeConfig,
    folder: Path,
    arguments: argparse.Namespace,
) -> dict[str, Any] | None:
    """Time of live decoding and of a replay of what it wrote; None when their rounds differ."""

    def live() -> list[e3.Decoded]:
        return [
            e3.decode(target, draft, prompt.tokens, tree, max_new_tokens=arguments.max_new_tokens) for prompt in prompts
        ]

    decoded = live()
    answered = [
        dataclasses.replace(prompt, answer=one.trajectory[len(prompt.tokens) :])
        for prompt, one in zip(prompts, decoded, strict=True)
    ]
    trace = e3.capture(target, answered, folder, capture_points=draft.capture_points)
    if not same_rounds(decoded, trace, draft, tree):
        return None
    decode_times, replay_times = [], []
    for _ in range(arguments.repeats):
        decode_times.append(seconds(live))
        replay_times.append(seconds(functools.partial(e3.replay, trace, draft, tree)))
    tokens = generated_tokens(trace)
    decode_s, replay_s = statistics.median(decode_times), statistics.median(replay_times)
    return {
        "tree": str(tree),
        "prompts": len(prompts),
        "rounds": sum(len(one.roots) for one in decoded),
        "generated_tokens": tokens,
        "acceptance_length": e3.replay(trace, draft, tree).acceptance_length,
        "decode_tokens_per_s": tokens / decode_s,
        "replay_tokens_per_s": tokens / replay_s,
        "decode_time_over_replay_time": decode_s / replay_s,
    }


def same_rounds(decoded: list[e3.Decoded], trace: e3.Trace, draft: e3.Eagle3Draft, tree: e3.TreeConfig) -> bool:
    """Whether every root and every count of accepted drafts agree; the trace holds what was decoded, in order."""
    rounds = {sequence.id: sequence for sequence in e3.replay_rounds(trace, draft, tree)}
    replayed = [(rounds[name].roots.tolist(), rounds[name].num_accepted.tolist()) for name in trace.ids]
    return replayed == [(one.roots, one.num_accepted) for one in decoded]


def generated_tokens(trace: e3.Trace) -> int:
    return sum(entry.num_tokens - entry.prompt_length for entry in trace.entries)


def scale(trace: e3.Trace, draft: e3.Eagle3Draft, tree: e3.TreeConfig, repeats: int) -> list[dict[str, Any]]:
    """Replay time per generated token for the first 8, 16, ... sequences of a trace."""
    parts = {count: dataclasses.replace(trace, entries=trace.entries[:count]) for count in NUM_PROMPTS}
    times: dict[int, list[float]] = {count: [] for count in parts}
    for _ in range(repeats):
        for count, part in parts.items():
            times[count].append(seconds(functools.partial(e3.replay, part, draft, tree)))
    rows = []
    for count, part in parts.items():
        tokens = generated_tokens(part)
        per_token = statistics.median(times[count]) / tokens
        rows.append({"prompts": count, "generated_tokens": tokens, "microseconds_per_token": per_token * 1e6})
    return rows


def repeated(prompts: list[e3.Prompt], count: int) -> list[e3.Prompt]:
    """``count`` prompts: the given ones over and over, each time under other ids."""
    copies = -(-count // len(prompts))
    named = [dataclasses.replace(prompt, id=f"{prompt.id} ({copy})") for copy in range(copies) for prompt in prompts]
    return named[:count]


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call. Both arms end with integers on the host, so no device work is left running."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU"


def table(results: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"{results['device']}, {results['threads']} threads, torch {results['versions']['torch']}, {results['dtype']}, "
        f"median of {results['repeats']}; the rounds of replay and live decoding are equal",
        "",
        "   tree  prompts  tokens  length  decode tok/s  replay tok/s   ratio",
    ]
    for row in results["replay_against_decode"]:
        lines.append(
            f"{row['tree']:>7} {row['prompts']:>8} {row['generated_tokens']:>7} {row['acceptance_length']:>7.2f} "
            f"{row['decode_tokens_per_s']:>13.0f} {row['replay_tokens_per_s']:>13.0f} "
            f"{row['decode_time_over_replay_time']:>6.1f}x"
        )
    lines += ["", f"replay at {TREES[0]}", f"{'prompts':>7} {'tokens':>8} {'us/token':>9}"]
    for row in results["replay_by_number_of_prompts"]:
        lines.append(f"{row['prompts']:>7} {row['generated_tokens']:>8} {row['microseconds_per_token']:>9.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

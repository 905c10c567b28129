"""What was found, as Markdown tables and sentences: for the terminal and for docs/streaming.md."""

from __future__ import annotations

from typing import Any

from real_layer.checkpoint import TEXT_CONFIG

Found = dict[str, Any]

REAL_MOE_LAYERS, REAL_VOCAB = 60, 163_840  # of Kimi-K2.5; one dense layer stands before them
GIB = 2**30


def share_of_raw(one: Found) -> float:
    """Bytes per second of the layer of experts over those of a bare read of its file just before."""
    step = one["steps"][-1]
    share: float = step["bytes"] / step["seconds"] / one["raw_bytes_per_s"]
    return share


def full_passes(found: Found) -> list[Found]:
    """What a pass over all 61 layers would take, for every case that was streamed in the first order."""
    rows = []
    for one in found["passes"]:
        if one["like"]:
            continue
        dense, experts = (step["seconds"] for step in one["steps"])
        head = one["score_seconds"] * REAL_VOCAB / TEXT_CONFIG["vocab_size"]
        seconds = dense + REAL_MOE_LAYERS * experts + head
        tokens = one["num_tokens"]
        sum_ = f"{dense:.1f} s + {REAL_MOE_LAYERS} x {experts:.1f} s + {head:.1f} s"
        rows.append(
            {
                "name": one["name"],
                "seconds": seconds,
                "tokens_per_s": tokens / seconds,
                "arithmetic": f"{sum_} = {seconds / 60:.1f} min",
            }
        )
    return rows


def failures(found: Found) -> list[str]:
    """What is wrong, in words; nothing if all is right."""
    bound = found["setting"]["memory_bound"]
    said = []
    for one in found["passes"]:
        if one["peak_bytes"] > bound:
            said.append(f"{one['name']}: a peak of {one['peak_bytes'] / GIB:.2f} GiB breaks the bound")
        if one["like"] and not one["same_bits"]:
            said.append(f"{one['name']}: other bits than {one['like']}")
        said += [f"{one['name']}: layer {c['layer']} is wrong: {c}" for c in one.get("checks", ()) if not c["right"]]
    return said


def report(found: Found) -> str:
    """For the terminal."""
    parts = [f"{name}\n\n{table}" for name, table in all_tables(found).items() if table.count("\n") > 1]
    return "\n\n".join([*parts, *(f"FAILED  {failure}" for failure in failures(found))])


def all_tables(found: Found) -> dict[str, str]:
    """By name, as docs/streaming.md marks them."""
    return {
        "plan": _plan(found),
        "rooms": _rooms(found),
        "passes": _passes(found),
        "shares": _shares(found),
        "dequantization": _dequantization(found),
        "multiplying": _multiplying(found),
        "errors": _errors(found),
        "full pass": _full_passes(found),
    }


def filled(page: str, found: Found) -> str:
    """The page with its tables replaced; each stands between ``<!-- its name -->`` and ``<!-- end -->``."""
    for name, table in all_tables(found).items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(start)
        page = f"{before}{start}{table}\n{end}{rest.partition(end)[2]}"
    return page


def _plan(found: Found) -> str:
    rows = [
        (
            f"{row['tokens']:,}",
            f"{row['bytes_to_read'] / 1e9:,.0f}",
            f"{row['experts_per_layer']:.0f}",
            f"{row['flops'] / 1e12:,.1f}",
            f"{row['stream_bytes'] / GIB:,.2f}",
            f"{row['trace_bytes'] / GIB:,.2f}",
        )
        for row in found["plan"]["rows"]
    ]
    head = ("tokens", "to read, GB", "experts of a layer", "TFLOP", "streams, GiB", "trace, GiB")
    return _table(head, rows)


def _rooms(found: Found) -> str:
    rows = [(row["memory"] // GIB, f"{row['tokens']:,}") for row in found["plan"]["rooms"]]
    return _table(("memory bound, GiB", "tokens of one pass"), rows)


def _passes(found: Found) -> str:
    rows = []
    for one in found["passes"]:
        step = one["steps"][-1]
        rows.append(
            (
                one["name"],
                f"{step['seconds']:.1f}",
                f"{step['bytes'] / step['seconds'] / 1e9:.2f}",
                f"{one['raw_bytes_per_s'] / 1e9:.2f}",
                f"{one['share_of_raw']:.0%}",
                f"{one['num_tokens'] / step['seconds']:.0f}",
                f"{one['peak_bytes'] / GIB:.2f}",
            )
        )
    return _table(("pass", "layer, s", "GB/s", "bare read, GB/s", "share", "tokens/s", "peak, GiB"), rows)


def _shares(found: Found) -> str:
    rows = []
    for one in found["passes"]:
        for thread, shares in one["steps"][-1]["shares"].items():
            rows.append((one["name"], thread, ", ".join(f"{what} {share:.0%}" for what, share in shares.items())))
    return _table(("pass", "thread", "busy with"), rows)


def _dequantization(found: Found) -> str:
    measured = found["dequantization"]
    rows = [
        (name, f"{rate / 1e9:.2f}", f"{measured['times_int32_shifts'][name]:.1f}")
        for name, rate in measured["weights_per_s"].items()
    ]
    return _table(("dequantizer", "G weights/s", "times the shifts"), rows)


def _multiplying(found: Found) -> str:
    rows = [
        (dtype, count, f"{rate / 1e9:.0f}")
        for dtype, by_count in found["flops_per_s"].items()
        for count, rate in by_count.items()
    ]
    return _table(("dtype", "tokens of an expert", "GFLOP/s"), rows)


def _errors(found: Found) -> str:
    rows = [
        (
            one["name"],
            check["layer"],
            check["tokens"],
            check["passed_over"],
            f"{check['error']:.1e}",
            f"{check['error_of_plain_pytorch']:.1e}",
            f"{check['largest_ratio']:.2f}",
        )
        for one in found["passes"]
        for check in one.get("checks", ())
    ]
    return _table(("pass", "layer", "tokens", "passed over", "error", "plain PyTorch's", "largest ratio"), rows)


def _full_passes(found: Found) -> str:
    rows = [(row["name"], row["arithmetic"], f"{row['tokens_per_s']:.2f}") for row in found["full_pass"]]
    return _table(("pass", "layer 0 + 60 layers + head", "tokens/s"), rows)


def _table(head: tuple[object, ...], rows: list[tuple[Any, ...]]) -> str:
    """The first column to the left, numbers to the right."""
    lines = [head, *rows]
    marks = [" | ".join(map(str, line)) for line in lines]
    numeric = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(head))]
    rule = "|".join("---:" if right else "---" for right in numeric)
    return "\n".join([f"| {marks[0]} |", f"|{rule}|", *(f"| {mark} |" for mark in marks[1:])])


def _is_number(value: object) -> bool:
    try:
        float(str(value).removesuffix("%").replace(",", ""))
    except ValueError:
        return False
    return True

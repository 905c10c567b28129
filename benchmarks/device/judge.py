"""What the rows say: shares of the ceilings, goals met or missed, checks failed, and a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from device.recorder import Row

_NOISE = 0.97  # a time under this share of another is shorter
ARMS = ("eager", "compiled", "ours", "native")


def failures(rows: list[Row]) -> list[str]:
    """One sentence for each check that failed, could not be run, or was not reached."""
    found = [f"{row['name']}: {_numbers(row)}" for row in rows if row["kind"] == "check" and not row["passed"]]
    found += [f"{row['name']}: {row['error']}" for row in rows if row["kind"] == "failure"]
    found += [f"{row['name']}: out of time" for row in rows if row["kind"] == "unreached" and row["is_check"]]
    return list(dict.fromkeys(found))  # a call that fails when it is compiled fails again when it is timed


def ceilings(rows: list[Row]) -> dict[str, float]:
    """``copy`` in bytes a second and ``matmul`` in flops a second, as far as they were measured."""
    measured = [row for row in rows if row["kind"] == "ceiling" and row["ms"]]
    return {row["name"]: row.get("bytes", row.get("flops")) / row["ms"] * 1e3 for row in measured}


def times(rows: list[Row]) -> list[dict[str, Any]]:
    """A line for each timed call: milliseconds of every arm, and of ours the rates and the share of the ceiling.

    The share is the larger of two floors, bytes at the rate of a copy and flops at that of a matrix product, over the
    time of ours.
    """
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] == "time":
            line = lines.setdefault(row["name"], {"name": row["name"]})
            line |= {key: row[key] for key in ("bytes", "flops", "goal") if row.get(key) is not None}
            line[row["arm"]] = row["ms"]
    for line in lines.values():
        _add_share(line, ceilings(rows))
    return list(lines.values())


def loops(rows: list[Row]) -> list[dict[str, Any]]:
    """A line for each draft loop: its three times, and the two ratios that have goals."""
    lines = {}
    for row in rows:
        if row["kind"] == "loop":
            graph, eager, kernels = row["graph_ms"], row["eager_ms"], row["kernels_ms"]
            ratios = {
                "graph_over_kernels": graph / kernels if graph and kernels else None,
                "eager_over_graph": eager / graph if graph and eager else None,
            }
            lines[row["name"]] = {**row, **ratios}  # the first round takes no times, the second does
    return list(lines.values())


def faster_tiles(rows: list[Row]) -> list[str]:
    """The fastest other tile of each call that beats the default by more than the noise."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["kind"] == "tile" and row["ms"] and row["ms"] < best.get(row["name"], {"ms": float("inf")})["ms"]:
            best[row["name"]] = row
    defaults = {line["name"]: line.get("ours") for line in times(rows)}
    return [
        f"{name} takes {row['ms']:.4f} ms with {row['tile']}, {defaults[name]:.4f} ms by default"
        for name, row in best.items()
        if defaults.get(name) and row["ms"] < _NOISE * defaults[name]
    ]


def goals(rows: list[Row]) -> list[tuple[str, bool | None]]:
    """Each goal, and whether it was met; None where it was not measured."""
    said: list[tuple[str, bool | None]] = []
    for line in times(rows):
        if line.get("goal") is not None and line.get("bound") != "matmul":  # goals are shares of the copy's rate
            share = line.get("share")
            reached = "not measured" if share is None else f"{share:.0%}"
            sentence = f"{line['name']}: {reached} of the copy's rate, goal {line['goal']:.0%}"
            said.append((sentence, None if share is None else share >= line["goal"]))
    for line in loops(rows):
        most, least = line["goals"]["graph_over_kernels"], line["goals"]["eager_over_graph"]
        over, gain = line["graph_over_kernels"], line["eager_over_graph"]
        said.append((f"{line['name']}: graph / its kernels {_ratio(over)}, goal at most {most}", over and over <= most))
        said.append((f"{line['name']}: eager / graph {_ratio(gain)}, goal at least {least}", gain and gain >= least))
    return said


def table(rows: list[Row]) -> str:
    """Everything, for people."""
    checks = [row for row in rows if row["kind"] == "check"]
    lines = [f"{row['name']}" for row in rows if row["kind"] == "device"]
    lines += [f"{name}: {rate / 1e12:.2f} T/s" for name, rate in ceilings(rows).items()]
    lines += [f"{sum(row['passed'] for row in checks)} of {len(checks)} checks passed", ""]
    lines += [f"{'ms, L2 cold':<52}" + "".join(f"{arm:>9}" for arm in ARMS) + f"{'GB/s':>8}{'TFLOP/s':>8}{'share':>7}"]
    lines += [_time_line(line) for line in times(rows)]
    lines += ["", f"{'one round of the draft loop, ms':<52}{'propose':>9}{'eager':>9}{'graph':>9}{'kernels':>9}"]
    arms = ("propose_ms", "eager_ms", "graph_ms", "kernels_ms")
    lines += [f"{line['name']:<52}" + "".join(_cell(line[arm]) for arm in arms) for line in loops(rows)]
    lines += [f"faster than the default: {sentence}" for sentence in faster_tiles(rows)]
    words = {True: "met", False: "MISSED", None: "not measured"}
    lines += ["", *(f"{words[met]:>12}  {sentence}" for sentence, met in goals(rows))]
    lines += [row["text"] for row in rows if row["kind"] == "note"]
    measured = {line["name"] for line in times(rows) if line.get("ours") or line.get("compiled")}
    left = {row["name"] for row in rows if row["kind"] == "unreached" and not row["is_check"]} - measured
    lines += [f"out of time, not measured: {', '.join(left)}"] if left else []
    return "\n".join([*lines, "", *(f"FAILED  {sentence}" for sentence in failures(rows))]).rstrip()


def _add_share(line: dict[str, Any], rates: dict[str, float]) -> None:
    milliseconds = line.get("ours")
    if not milliseconds or "bytes" not in line:
        return
    seconds = milliseconds / 1e3
    line["gb_per_s"], line["tflop_per_s"] = line["bytes"] / seconds / 1e9, line["flops"] / seconds / 1e12
    if len(rates) == 2:
        floors = {"copy": line["bytes"] / rates["copy"], "matmul": line["flops"] / rates["matmul"]}
        line["bound"] = max(floors, key=lambda name: floors[name])
        line["share"] = floors[line["bound"]] / seconds


def _time_line(line: dict[str, Any]) -> str:
    share = line.get("share")
    rates = "".join(f"{line[key]:8.0f}" if key in line else f"{'-':>8}" for key in ("gb_per_s", "tflop_per_s"))
    return (
        f"{line['name']:<52}"
        + "".join(_cell(line.get(arm)) for arm in ARMS)
        + rates
        + (f"{'-':>7}" if share is None else f"{share:7.0%}")
    )


def _cell(milliseconds: float | None) -> str:
    return f"{'-':>9}" if milliseconds is None else f"{milliseconds:9.4f}"


def _ratio(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"


def _numbers(row: Row) -> str:
    known: Iterable[str] = ("kind", "name", "passed", "part")
    return ", ".join(f"{key} {value}" for key, value in row.items() if key not in known)

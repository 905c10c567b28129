"""The tables of docs/benchmarks.md, made from the results; a test holds page and results against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.replays import ALL, SAFEAILAB, SPINE, WALK

Results = dict[str, Any]


def tables(results: Results) -> dict[str, str]:
    """Part -> Markdown table, for the parts that were measured."""
    makers = {"replays": replays, "steps": steps, "engines": engines, "growth": growth, "rate": rate}
    made = {name: make(results[name]["rows"]) for name, make in makers.items() if name in results}
    return {**made, "goals": "\n".join(["| aim | reached |", rule("ll"), *(line(*goal) for goal in goals(results))])}


def write(results: Results, page: Path) -> None:
    """Put the tables between the marks ``<!-- name -->`` and ``<!-- end -->`` of the page."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables(results).items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = before + mark + table + "\n" + end + after
    page.write_text(text, encoding="utf-8")


def replays(rows: list[Results]) -> str:
    """A line for each pair, tree and arm, with how often the walk is faster."""
    lines = ["| pair | tree | length | scored by | tokens/s | walk is faster by | by processor time |", rule("llrlrrr")]
    for row in rows:
        arms = {arm["arm"]: arm for arm in row["arms"]}
        walk = arms[WALK]
        for name, arm in arms.items():
            times = walk["tokens_per_s"] / arm["tokens_per_s"]
            cpu = walk["tokens_per_cpu_s"] / arm["tokens_per_cpu_s"]
            cells = (row["pair"], row["tree"], f"{row['acceptance_length']:.2f}", name, f"{arm['tokens_per_s']:.0f}")
            lines.append(line(*cells, f"{times:.1f}", f"{cpu:.1f}"))
    return "\n".join(lines)


def position_cost(row: Results) -> float:
    """Time of all positions over that of the walk, each by the positions that it evaluated."""
    arms = {arm["arm"]: arm["tokens"] / arm["tokens_per_s"] for arm in row["arms"]}
    return (arms[ALL] / row["positions"]["all"]) / (arms[WALK] / row["positions"]["walk"])


def steps(rows: list[Results]) -> str:
    """Both arms of each pair."""
    lines = ["| pair | chain | positions | equal | scored by | tokens/s |", rule("llrrlr")]
    for row in rows:
        for arm in row["arms"]:
            cells = (row["pair"], row["tree"], row["positions"], row["positions_equal"])
            lines.append(line(*cells, arm["arm"], f"{arm['tokens_per_s']:.0f}"))
    return "\n".join(lines)


def engines(rows: list[Results]) -> str:
    """Each run of an engine, with live decoding and the replay beside it."""
    lines = [
        "| run | tree | answers | equal | engine tokens/s | its start-up, s | `decode` tokens/s | walk tokens/s "
        "| walk/engine |",
        rule("llrrrrrrr"),
    ]
    for row in rows:
        live, walk = (arm["tokens_per_s"] for arm in row["arms"])
        engine = row.get("engine_tokens_per_s")
        theirs = ("not run",) * 4 if engine is None else (row["answers"], row["answers_equal"], f"{engine:.0f}")
        if engine is not None:
            theirs = (*theirs, f"{row['engine_startup_s']:.0f}")
        ratio = "" if engine is None else f"{walk / engine:.1f}"
        lines.append(line(row["run"], row["tree"], *theirs, f"{live:.0f}", f"{walk:.0f}", ratio))
    return "\n".join(lines)


def growth(rows: list[Results]) -> str:
    """A line for each size of the trace."""
    lines = ["| tokens | trace, MB | microseconds/token | first result, s | peak memory, MB |", rule("rrrrr")]
    for row in rows:
        cells = (row["tokens"], f"{row['trace_mb']:.1f}", f"{row['microseconds_per_token']:.1f}")
        lines.append(line(*cells, f"{row['first_result_s']:.2f}", f"{row['peak_mb']:.0f}"))
    return "\n".join(lines)


def rate(rows: list[Results]) -> str:
    """A line for each pair."""
    lines = ["| pair | forwards, GFLOP by processor second | products alone | share |", rule("lrrr")]
    for row in rows:
        cells = (f"{row['forward_gflops']:.0f}", f"{row['product_gflops']:.0f}", f"{row['share']:.0%}")
        lines.append(line(row["pair"], *cells))
    return "\n".join(lines)


def goals(results: Results) -> list[tuple[str, str]]:
    """What was aimed at, with the figure that was reached, and whether it is enough."""
    found: list[tuple[str, bool]] = []
    for row in results.get("replays", {}).get("rows", []):
        where = f"{row['pair']}, {row['tree']}"
        arms = {arm["arm"]: arm["tokens_per_s"] for arm in row["arms"]}
        for name, least in ((SAFEAILAB, 10), (SPINE, 3)):
            if name in arms:
                times = arms[WALK] / arms[name]
                found.append((f"{where}: {times:.1f} x {name}, at least {least}", times >= least))
        cost = position_cost(row)
        found.append((f"{where}: all positions at {cost:.2f} x the walk's time by position, at most 2", cost <= 2))
    for row in results.get("engines", {}).get("rows", []):
        if engine := row.get("engine_tokens_per_s"):
            times = row["arms"][1]["tokens_per_s"] / engine
            found.append((f"{row['run']}: {times:.0f} x the engine, at least 30", times >= 30))
    for row in results.get("rate", {}).get("rows", []):
        found.append((f"{row['pair']}: {row['share']:.0%} of the rate of products, at least 60 %", row["share"] >= 0.6))
    return [(aim, "yes" if reached else "no") for aim, reached in found]


def line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def rule(alignment: str) -> str:
    """``l`` and ``r`` of each column."""
    return "|" + "|".join("---" if side == "l" else "---:" for side in alignment) + "|"

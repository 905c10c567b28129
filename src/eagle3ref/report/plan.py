"""The plan of a streamed capture for people: what is read, computed and kept, and how long it should take here."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from eagle3ref.report.style import duration, facts, size
from eagle3ref.trace.plan import CapturePlan
from eagle3ref.trace.speeds import Speeds


def plan_report(plan: CapturePlan, speeds: Speeds | None, dequantizer: str) -> RenderableType:
    """What was checked, the work, its expected time, and the room it needs.

    Args:
        plan: of the passes that are left.
        speeds: of this machine; may be None when no pass is left.
        dequantizer: who expands INT4 weights, in a word or two.
    """
    census = plan.target.census
    rows = [("checked", f"{census.num_tensors:,} tensors, {size(census.num_bytes)}, by name, dtype and shape")]
    if speeds is None or not plan.passes:
        return _titled([*rows, ("left to do", "nothing")])
    rows += [
        ("passes", _passes(plan)),
        *_answers(plan, speeds),
        *_work(plan, speeds, dequantizer),
        ("expected", _expected(plan, speeds)),
        ("disk", f"{size(plan.disk_needed)} for trace and work folder; {size(plan.disk_free)} are free"),
        ("memory", _memory(plan)),
    ]
    return _titled(rows)


def _titled(rows: list[tuple[str, str]]) -> RenderableType:
    return Group(Text("plan", style="bold cyan"), facts(rows))


def _passes(plan: CapturePlan) -> str:
    layers = plan.target.config.num_layers
    sequences, tokens = (sum(getattr(cost, name) for cost in plan.passes) for name in ("num_sequences", "num_tokens"))
    text = f"{len(plan.passes)} over {layers} layers: {sequences:,} sequences, {tokens:,} tokens"
    experts = min(cost.experts_per_layer for cost in plan.passes)
    if experts < plan.target.architecture.moe.num_experts:
        text += f"; about {experts:.0f} of {plan.target.architecture.moe.num_experts} experts a layer"
    return f"{text}; the first goes on at layer {plan.layers_done}" if plan.layers_done else text


def _answers(plan: CapturePlan, speeds: Speeds) -> list[tuple[str, str]]:
    if not plan.answering:
        return []
    of_each = "" if len(plan.answering) == 1 else f" in each of {len(plan.answering)} passes"
    text = (
        f"{plan.unanswered:,} prompts have none: up to {plan.rounds:,} rounds come first{of_each}, each with one token "
        f"of every prompt and about {size(max(cost.bytes_to_read for cost in plan.answering))} to read: up to "
        f"{duration(plan.answering_seconds(speeds))}; with --speculate they are fewer"
    )
    return [("answers", text)]


def _work(plan: CapturePlan, speeds: Speeds, dequantizer: str) -> list[tuple[str, str]]:
    """A row for each kind of it, answers excluded; without dequantizing where nothing is packed."""
    work, seconds = plan.work(), plan.seconds(speeds)
    weights = f"{work['dequantize'] / 1e9:,.1f} G weights at {speeds.dequantize / 1e9:.2f} G/s"
    amounts = {
        "read": f"{size(round(work['read']))} at {size(round(speeds.read))}/s",
        "dequantize": f"{weights} by {dequantizer}",
        "multiply": f"{work['multiply'] / 1e12:,.2f} TFLOP at {speeds.multiply / 1e12:.3f} TFLOP/s",
        "attend": f"{work['attend'] / 1e12:,.2f} TFLOP at {speeds.attend / 1e12:.3f} TFLOP/s",
    }
    return [(f"to {kind}", f"{text}: {duration(seconds[kind])}") for kind, text in amounts.items() if work[kind]]


def _expected(plan: CapturePlan, speeds: Speeds) -> str:
    """Reading goes on beside the rest, in a thread of its own. What is small beside these four is not in it."""
    seconds = plan.seconds(speeds)
    reading = seconds.pop("read")
    working = sum(seconds.values())
    what = "reading" if reading > working else f"to {max(seconds, key=lambda kind: seconds[kind])}"
    text = (
        f"{duration(max(reading, working))} for the passes, on a machine without other work; {what} takes the longest"
    )
    if not plan.answering:
        return text
    return f"{text}; up to {duration(plan.answering_seconds(speeds))} for the answers before"


def _memory(plan: CapturePlan) -> str:
    bound = plan.target.memory
    parts = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in plan.memory.items())
    return f"{'no bound' if bound is None else f'at most {bound / 2**30:.3g} GiB ({size(bound)})'}: {parts}"

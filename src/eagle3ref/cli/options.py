"""Options that several commands take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from eagle3ref.config import CHAIN_RULES, AcceptanceRule, FinalNorm, RuleName, TreeConfig, TreeKV
from eagle3ref.errors import Eagle3RefError

DTypeName = Literal["bfloat16", "float32", "float64"]

DEFAULT_TREE = TreeConfig(3, 1, 4)
# A command with these takes the server's own flags as further words.
SERVER_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}

Engine = Annotated[str, typer.Option(metavar="NAME==VERSION", help="sglang==0.5.23, vllm==0.32.0, …")]
OptionalEngine = Annotated[
    str | None,
    typer.Option(metavar="NAME==VERSION", help="Wire the draft as this engine does; its server flags may follow."),
]
NumSteps = Annotated[int | None, typer.Option(help="Depth of the tree.", show_default="3, or the engine's")]
TopK = Annotated[int | None, typer.Option(help="Children kept per beam; 1 is a chain.", show_default="1")]
NumDraftTokens = Annotated[
    int | None,
    typer.Option(help="Nodes verified per round, the root included.", show_default="num_steps + 1 of a chain"),
]
Rule = Annotated[RuleName | None, typer.Option(help="At temperature > 0.", show_default="target_only, or the engine's")]
SampledDrafts = Annotated[bool, typer.Option("--sampled-drafts", help="With rejection and block: draw the drafts too.")]
RopeTheta = Annotated[float | None, typer.Option(help="Base of the draft's rope.", show_default="the file's")]
HiddenDoubleNorm = Annotated[
    bool, typer.Option("--hidden-double-norm", help="Norm the state twice, as modelopt has trained.")
]
FinalNormOption = Annotated[
    FinalNorm | None, typer.Option(help="Who reads the normed stream.", show_default="as the file says")
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
KeptMass = Annotated[float, typer.Option(help="1 keeps all.")]
KeptTokens = Annotated[int, typer.Option(help="0 keeps all.")]
Seed = Annotated[int, typer.Option(help="Of the sampled answers.")]
Device = Annotated[str, typer.Option(help="Where to run, as torch names it.")]
Devices = Annotated[str, typer.Option(help="As torch names it; for Kimi-K2 also several: cuda:0,cuda:1.")]
Weights = Annotated[
    Literal["resident", "stream"],
    typer.Option(help="Kimi-K2: load them, or read them layer by layer, all prompts together."),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="8GiB", help="Of the whole process at most, with --weights stream.", show_default=False),
]
CapturePoints = Annotated[
    str | None, typer.Option(metavar="2,30,58", help="Residual streams *entering* these layers.", show_default=False)
]


def parse_capture_points(text: str | None) -> tuple[int, ...] | None:
    """``"2,30,58"`` -> (2, 30, 58); None stays None.

    Raises:
        typer.BadParameter: not a list of integers.
    """
    try:
        return None if text is None else tuple(int(point) for point in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"--capture-points {text!r} is no list of layers such as 2,30,58") from error


_UNITS: dict[str, int] = {"": 1} | {
    prefix + unit: base**power for power, prefix in enumerate("kmgt", 1) for unit, base in (("b", 1000), ("ib", 1024))
}


def parse_memory(text: str | None) -> int | None:
    """``"8GiB"``, ``"500 MB"``, ``"1.5TB"`` -> bytes; None stays None. kB, MB, GB and TB are powers of 1000.

    Raises:
        Eagle3RefError: not a number with one of these units, or nothing.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    factor = _UNITS.get(match[2]) if match else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise Eagle3RefError(
            "reading --memory",
            found=repr(text),
            expected="a size such as 8GiB, 500MB or 8589934592",
            action="Give a number and a unit: kB, MB, GB, TB, or KiB, MiB, GiB, TiB.",
        )
    return round(float(match[1]) * factor)


def refuse_flags_before(context: typer.Context, *places: Path) -> None:
    """Refuse an unknown option in the place of a folder: it would be read as the folder's name."""
    early = [str(place) for place in places if str(place).startswith("-")]
    if early:
        context.fail(f"{early[0]} stands before the folders. Server flags go last.")


def asked_tree(
    num_steps: int | None, topk: int | None, num_draft_tokens: int | None, tree_kv: TreeKV = "slot"
) -> TreeConfig | None:
    """The tree of these options, that of ``DEFAULT_TREE`` where they say nothing; None if none of them was given.

    A chain takes as many draft tokens as it has.

    Raises:
        Eagle3RefError: counts that do not go together, or a tree without its number of draft tokens.
    """
    if (num_steps, topk, num_draft_tokens) == (None, None, None):
        return None
    steps = DEFAULT_TREE.num_steps if num_steps is None else num_steps
    children = DEFAULT_TREE.topk if topk is None else topk
    if num_draft_tokens is None:
        if children > 1:
            raise Eagle3RefError(
                "reading the tree settings",
                found=f"--topk {children} without --num-draft-tokens",
                expected="the number of nodes that a round verifies, for every tree with topk above 1",
                action="Add --num-draft-tokens, or leave --topk at 1: a chain has num_steps + 1.",
            )
        num_draft_tokens = steps + 1
    return TreeConfig(steps, children, num_draft_tokens, tree_kv)


def asked_rule(rule: RuleName | None, sampled_drafts: bool) -> AcceptanceRule | None:
    """The rule of these options; None if none was given.

    Raises:
        Eagle3RefError: sampled drafts with a rule that has none.
    """
    if rule is None and not sampled_drafts:
        return None
    if sampled_drafts and rule not in CHAIN_RULES:
        raise Eagle3RefError(
            "reading the acceptance rule",
            found=f"--sampled-drafts with --rule {rule}" if rule else "--sampled-drafts without --rule",
            expected="a rule that knows sampled drafts",
            action=f"Add {' or '.join(f'--rule {name}' for name in CHAIN_RULES)}.",
        )
    return AcceptanceRule(rule or "target_only", "sampled" if sampled_drafts else "top")


def torch_dtype(name: DTypeName) -> torch.dtype:
    """The dtype of that name."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}[name]


def usable_device(name: str) -> torch.device:
    """The device of that name, after an allocation on it.

    Raises:
        Eagle3RefError: no device of this machine, or one that holds no values.
    """
    try:
        device = torch.device(name)
        torch.ones(1, device=device).tolist()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        raise Eagle3RefError(
            f"looking for the device {name!r}",
            found=str(error).splitlines()[0],
            expected="a device that this torch can use, such as cpu, cuda or cuda:1",
            action="Correct --device.",
        ) from error
    return device

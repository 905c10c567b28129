"""Options that several commands take."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import torch
import typer

from eagle3ref.config import AcceptanceRule, TreeConfig, TreeKV
from eagle3ref.errors import Eagle3RefError


class DType(str, Enum):
    """Dtypes of weights and activations."""

    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


class TreeKVChoice(str, Enum):
    """See ``TreeConfig.tree_kv``."""

    slot = "slot"
    ancestor = "ancestor"


class RuleChoice(str, Enum):
    """See ``AcceptanceRule.name``."""

    greedy = "greedy"
    target_only = "target_only"
    rejection = "rejection"
    block = "block"
    multi_round = "multi_round"


class FinalNormChoice(str, Enum):
    """See ``FINAL_NORM_MEANING``."""

    head = "head"
    head_and_state = "head+state"
    none = "none"


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
    int | None, typer.Option(help="Nodes verified per round, the root included.", show_default="4")
]
Rule = Annotated[
    RuleChoice | None, typer.Option(help="At temperature > 0.", show_default="target_only, or the engine's")
]
SampledDrafts = Annotated[bool, typer.Option("--sampled-drafts", help="With rejection and block: draw the drafts too.")]
RopeTheta = Annotated[float | None, typer.Option(help="Base of the draft's rope.", show_default="the file's")]
HiddenDoubleNorm = Annotated[
    bool, typer.Option("--hidden-double-norm", help="Norm the state twice, as modelopt has trained.")
]
FinalNorm = Annotated[
    FinalNormChoice | None, typer.Option(help="Who reads the normed stream.", show_default="as the file says")
]
Device = Annotated[str, typer.Option(help="Where to run, as torch names it.")]
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


def asked_tree(
    num_steps: int | None, topk: int | None, num_draft_tokens: int | None, tree_kv: TreeKVChoice | None = None
) -> TreeConfig | None:
    """The tree of these options, 3/1/4 where they say nothing; None if none of them was given.

    Raises:
        Eagle3RefError: counts that do not go together.
    """
    if (num_steps, topk, num_draft_tokens) == (None, None, None):
        return None
    kv: TreeKV = "ancestor" if tree_kv is TreeKVChoice.ancestor else "slot"
    return TreeConfig(num_steps or 3, topk or 1, num_draft_tokens or 4, kv)


def asked_rule(rule: RuleChoice | None, sampled_drafts: bool) -> AcceptanceRule | None:
    """The rule of these options; None if none was given.

    Raises:
        Eagle3RefError: sampled drafts with a rule that has none.
    """
    if rule is None and not sampled_drafts:
        return None
    return AcceptanceRule((rule or RuleChoice.target_only).value, "sampled" if sampled_drafts else "top")


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype of that name."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}[dtype.value]


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

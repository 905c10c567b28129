"""From the layer ids that a draft's config.json gives, in one of two numberings, to capture points."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3ref.config import DraftConfig
from eagle3ref.engines import default_capture_points
from eagle3ref.errors import Eagle3RefError


def resolve_capture_points(
    config: DraftConfig, num_layers: int | None, override: Sequence[int] | None, where: str
) -> tuple[tuple[int, ...], str]:
    """The residual streams that ``fc`` was trained on, and one sentence on how they were found.

    Files number the same streams in two ways: "input of layer k" or "output of layer k" (one less). The order here:
    what the caller says; no ids in the file: (2, n // 2, n - 3), as SGLang, vLLM and the original code; a first id of
    1: output numbering; of 2: input numbering. Other lists say nothing about their numbering and must be overridden.

    Args:
        config: the draft's.
        num_layers: of the target; None when it is not known.
        override: capture points from the caller, input numbering.
        where: the checkpoint, for messages.

    Raises:
        Eagle3RefError: the points cannot be resolved, are not ascending, out of range, or not as many as ``fc`` takes.
    """
    doing = f"resolving the capture points of {where}"
    given = config.capture_ids
    if override is not None:
        points, how = tuple(override), "given by the caller"
    elif given is None:
        if num_layers is None:
            raise Eagle3RefError(
                doing,
                found="no layer ids in config.json, and no target",
                expected="a target, whose depth n gives the default (2, n // 2, n - 3)",
                action="Pass the target, or capture_points.",
            )
        points, how = default_capture_points(num_layers), f"no ids in config.json; the default for {num_layers} layers"
    elif given and given[0] == 1:
        points = tuple(layer + 1 for layer in given)
        how = f"{config.capture_ids_key} = {list(given)} starts with 1: outputs of layers, i.e. inputs of the next"
    elif given and given[0] == 2:
        points, how = given, f"{config.capture_ids_key} = {list(given)} starts with 2: inputs of those layers"
    else:
        raise Eagle3RefError(
            doing,
            found=f"{config.capture_ids_key} = {list(given)}",
            expected="a list that starts with 1 (outputs of layers) or 2 (inputs of layers)",
            action="Say which residual streams the draft was trained on: pass capture_points (inputs of layers). "
            "Engines would guess, each in its own way.",
        )
    _check(doing, points, num_layers, config.num_aux_hidden_states)
    return points, how


def _check(doing: str, points: tuple[int, ...], num_layers: int | None, wanted: int) -> None:
    highest = max(points, default=0) if num_layers is None else num_layers
    in_order = list(points) == sorted(set(points)) and all(0 <= point <= highest for point in points)
    if len(points) != wanted or not in_order:
        limit = "the number of layers" if num_layers is None else str(num_layers)
        raise Eagle3RefError(
            doing,
            found=f"capture points {points}",
            expected=f"{wanted} ascending points (the draft fuses {wanted} states) from 0 to {limit}",
            action="Correct the ids in config.json, or pass capture_points.",
        )

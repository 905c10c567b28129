"""From the layer ids that a draft's config.json gives, in one of two numberings, to capture points."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3ref.config import DraftConfig
from eagle3ref.config.draft import BOTH_ENGINES_IDS_KEY, EXPORTED_POINTS_KEY
from eagle3ref.engines import default_capture_points
from eagle3ref.errors import Eagle3RefError

_INPUT_NUMBERING = ("speculators", "vLLM")
_OUTPUT_NUMBERING = ("modelopt", "NeMo", "TorchSpec")


def resolve_capture_points(
    config: DraftConfig, num_layers: int | None, override: Sequence[int] | None, where: str
) -> tuple[tuple[int, ...], str]:
    """The residual streams that ``fc`` was trained on, and one sentence on how they were found.

    Files number the same streams in two ways: "input of layer k" or "output of layer k" (one less). The order here:
    what the caller says; no ids in the file: (2, n // 2, n - 3), as SGLang, vLLM and the original code; two lists that
    differ by one: the larger ids are inputs; a file in speculators' or vLLM's own format: inputs; a first id of 1:
    outputs; of 2: inputs, since files of output-numbering families were renumbered for engines; another first id in a
    family that numbers outputs: outputs. What is left says nothing about its numbering and must be overridden.

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
                action="Pass the target, or capture_points (--capture-points).",
            )
        points, how = default_capture_points(num_layers), f"no ids in config.json; the default for {num_layers} layers"
    else:
        shift, why = _numbering(config, given, doing)
        points = tuple(layer + shift for layer in given)
        meaning = "outputs of layers, i.e. inputs of the next" if shift else "inputs of those layers"
        how = f"{config.capture_ids_key} = {list(given)} {why}: {meaning}"
    _check(doing, points, num_layers, config.num_aux_hidden_states)
    return points, how


def _numbering(config: DraftConfig, given: tuple[int, ...], doing: str) -> tuple[int, str]:
    """What to add to the ids for capture points, and why."""
    if config.capture_ids_key == EXPORTED_POINTS_KEY:
        return 0, "written by this package's export"
    if config.capture_ids_key == BOTH_ENGINES_IDS_KEY:
        return 0, "as vLLM and SGLang number the same streams"
    # TorchSpec adds 1 to the ids of MLA drafts that it exports for vLLM, and leaves no mark of that.
    is_shifted_sometimes = config.family == "TorchSpec" and config.attention.kind == "mla"
    if given and config.family in _INPUT_NUMBERING:
        return 0, f"in {config.family}'s format"
    if given and given[0] in (1, 2):
        return 2 - given[0], f"starts with {given[0]}"
    if given and given[0] >= 0 and config.family in _OUTPUT_NUMBERING and not is_shifted_sometimes:
        return 1, f"written by {config.family}"
    raise Eagle3RefError(
        doing,
        found=f"{config.capture_ids_key} = {list(given)}",
        expected="a list that starts with 1 (outputs of layers) or 2 (inputs of layers), or a writer whose numbering "
        + f"is known (here: {config.family})"
        + (", and not TensorRT-LLM's -1, the final state after the norm" if min(given, default=0) < 0 else ""),
        action="Say which residual streams the draft was trained on: pass capture_points (--capture-points), as "
        "inputs of layers. Engines would guess, each in its own way.",
    )


def _check(doing: str, points: tuple[int, ...], num_layers: int | None, wanted: int) -> None:
    highest = max(points, default=0) if num_layers is None else num_layers
    in_order = list(points) == sorted(set(points)) and all(0 <= point <= highest for point in points)
    if len(points) != wanted or not in_order:
        limit = "the number of layers" if num_layers is None else str(num_layers)
        raise Eagle3RefError(
            doing,
            found=f"capture points {points}",
            expected=f"{wanted} ascending points (the draft fuses {wanted} states) from 0 to {limit}",
            action="Correct the ids in config.json, or pass capture_points (--capture-points).",
        )

"""From capture points to the layer ids that make an engine capture just those."""

from __future__ import annotations

from eagle3ref.config import TargetConfig
from eagle3ref.draft.export.layouts import READER, ExportFormat
from eagle3ref.engines import captured_points, engine_profile, ids_that_capture
from eagle3ref.errors import Eagle3RefError

_PROFILE = {"sglang": "sglang==0.5.23", "vllm": "vllm==0.32.0"}


def capture_ids(
    points: tuple[int, ...], format: ExportFormat, target: TargetConfig | None, doing: str
) -> tuple[int, ...]:
    """The ids to write.

    The engine's own rule decides; speculators takes inputs of layers, always.

    Args:
        points: residual streams entering these layers.
        format: whose numbering.
        target: SGLang's rule depends on it; needed unless the points start with 2.
        doing: opens the message.

    Raises:
        Eagle3RefError: SGLang, points that do not start with 2, and no target; or a target on which the engine can
            not be made to capture these points.
    """
    if format == "speculators":
        return points
    if target is None:
        if format == "sglang" and points[0] != 2:
            raise Eagle3RefError(
                doing,
                found=f"capture points {points} and no target",
                expected="a target: SGLang adds 1 to the ids of some targets, and to those of others it does not",
                action="Pass the target.",
            )
        return tuple(point - 1 for point in points) if format == "sglang" else points
    profile = engine_profile(_PROFILE[format])
    ids = ids_that_capture(profile, points, target.model_type, target.num_layers)
    if ids is not None:
        return ids
    written = {profile.capture_keys[0]: points}
    found = captured_points(profile, written, target.model_type, target.num_layers, len(points))
    raise Eagle3RefError(
        doing,
        found=f"capture points {points} on a {target.model_type} target ({found.failure or found.note})",
        expected=f"points that {READER[format]} captures there",
        action="No ids in config.json make it capture them. Choose another engine.",
    )

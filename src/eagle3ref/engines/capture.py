"""From the layer ids in a draft's config.json to the residual streams that an engine really captures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eagle3ref.engines.profile import EngineProfile, IdRule
from eagle3ref.errors import Eagle3RefError

FEWEST_LAYERS = 7  # below, the default capture points are not three different, ascending ones


@dataclass(frozen=True)
class CapturedPoints:
    """What an engine captures for one draft on one target.

    Args:
        points: the residual streams that it hands to the draft, ascending: k enters layer k.
        note: which ids it read, and what it did with them.
        failure: what it does instead of running; None if it runs. It says nothing about the quality.
    """

    points: tuple[int, ...]
    note: str
    failure: str | None = None


def default_capture_points(num_layers: int) -> tuple[int, int, int]:
    """``(2, n // 2, n - 3)``: the residual streams that EAGLE-3 reads when nothing else is said.

    Source: the authors' EAGLE-3 code; SGLang, vLLM, TensorRT-LLM and speculators have the same default.

    Raises:
        Eagle3RefError: fewer than ``FEWEST_LAYERS``, where the three are not different and ascending.
    """
    points = (2, num_layers // 2, num_layers - 3)
    if num_layers < FEWEST_LAYERS:
        raise Eagle3RefError(
            "choosing default capture points",
            found=f"{num_layers} layers, which would give {points}",
            expected=f"at least {FEWEST_LAYERS} layers, for three ascending points",
            action="Name the capture points explicitly.",
        )
    return points


def captured_points(
    profile: EngineProfile, written: Mapping[str, Sequence[int]], model_type: str, num_layers: int, num_states: int
) -> CapturedPoints:
    """What the engine captures for layer ids as they stand in a draft's config.json.

    Layers run in order and each is captured once, so the order of a list and its repetitions are lost.

    Args:
        profile: of the engine.
        written: the lists of ids in the file, by dotted key.
        model_type: of the target's config.json, e.g. ``"llama"`` or ``"kimi_k25"``.
        num_layers: of the target.
        num_states: A, how many states the draft's ``fc`` takes.

    Raises:
        Eagle3RefError: no key that this engine reads, and the target is too small for the default.
    """
    rule = profile.id_rules.get(model_type, profile.id_rules.get("*"))
    if rule is None:
        known = ", ".join(sorted(profile.id_rules))
        return CapturedPoints((), f"targets: {known}", f"it has no EAGLE-3 capture for model_type {model_type!r}")
    key = next((key for key in profile.capture_keys if written.get(key)), None)
    asked = default_capture_points(num_layers) if key is None else tuple(written[key])
    shift = _shift(rule, asked, num_layers, is_default=key is None)
    wanted = [layer_id + shift for layer_id in asked]
    last = num_layers if _named(model_type, profile.last_point_targets) else num_layers - 1
    points = tuple(sorted({point for point in wanted if 0 <= point <= last}))
    outside = sorted(set(wanted) - set(points))
    note = _note(key, written, asked, shift, points)
    if outside:
        happens = profile.point_outside.get(model_type, profile.point_outside["*"])
        return CapturedPoints(points, note, f"no layer has point {', '.join(map(str, outside))}: {happens}")
    if len(points) != num_states:
        failure = f"{len(points)} states where fc takes {num_states}: it fails on the width at the first forward"
        return CapturedPoints(points, note, failure)
    return CapturedPoints(points, note)


def ids_that_capture(
    profile: EngineProfile, points: tuple[int, ...], model_type: str, num_layers: int
) -> tuple[int, ...] | None:
    """The ids, where this engine takes them (``ids_key``), for which it captures just these points; None if none do.

    "Outputs of layers" (one less) come first: a list that starts with 1 is read alike by every SGLang version and
    for every target.

    Args:
        profile: of the engine.
        points: residual streams entering these layers.
        model_type: of the target's config.json.
        num_layers: of the target.
    """
    key = profile.ids_key
    if key is None:
        return None
    reading = replace(profile, capture_keys=(key,))
    for ids in (tuple(point - 1 for point in points), points):
        found = captured_points(reading, {key: ids}, model_type, num_layers, len(points))
        if found.points == points and found.failure is None:
            return ids
    return None


def _shift(rule: IdRule, asked: tuple[int, ...], num_layers: int, is_default: bool) -> int:
    """What the engine adds to each id."""
    if is_default:
        return 1 if rule == "plus_one_default_too" else 0
    if rule == "plus_one_if_first_is_1":
        return 1 if asked[0] == 1 else 0
    if rule == "plus_one_unless_last_is_n":
        return 0 if max(asked) == num_layers else 1
    return 0 if rule == "as_is" else 1


def _named(model_type: str, targets: tuple[str, ...]) -> bool:
    return model_type in targets or "*" in targets


def _note(
    key: str | None, written: Mapping[str, Sequence[int]], asked: tuple[int, ...], shift: int, points: tuple[int, ...]
) -> str:
    numbers = f"{list(asked)}{' + 1' if shift else ''} -> inputs of layers {', '.join(map(str, points)) or 'none'}"
    if key is not None:
        return f"{key} = {numbers}"
    unread = " and ".join(sorted(written))
    return f"the default, {numbers}" + (f"; {unread} is not read" if unread else "; no ids in config.json")

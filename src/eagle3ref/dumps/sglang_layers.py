"""Which layers an SGLang server captured, as far as its settings tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.files import load_json, refuse
from eagle3ref.engines import FEWEST_LAYERS, EngineProfile, captured_points, default_capture_points, engine_profile
from eagle3ref.errors import Eagle3RefError

INFO_FILE = "server_info.json"
_USUAL = 3
_IDS = "return_aux_hidden_state_layer_ids"
_CAPTURE = "enable_return_aux_hidden_states"
_DRAFT = "speculative_draft_model_path"
_NESTED = "eagle_config"
_SAVE_IT = f"save the server's GET /server_info as {INFO_FILE} beside the dump"


class Believed(NamedTuple):
    """What speaks for which layers.

    Args:
        points: one for each state, ascending; None when nothing speaks for any.
        reason: why, in one sentence.
        engine: with its version, as well as it is known.
    """

    points: tuple[int, ...] | None
    reason: str
    engine: str


def believed_layers(folder: Path, num_states: int, target: TargetConfig | None) -> Believed:
    """The layers that SGLang captured for a dump, from the ``server_info.json`` beside it.

    SGLang hands states over in the order of the layers, whatever the order of the ids, and adds 1 to the ids of most
    targets; ``engines`` has the rule of each version.

    Args:
        folder: of the dump.
        num_states: A; 0 when only the final state was dumped.
        target: whose layers they are.

    Raises:
        Eagle3RefError: a ``server_info.json`` that is no JSON object.
    """
    path = folder / INFO_FILE
    info = load_json(path) if path.exists() else {}
    if not isinstance(info, dict):
        refuse(path, f"a {type(info).__name__}", "the object that GET /server_info gives")
    version = info.get("version")
    engine = f"sglang {version}" if isinstance(version, str) else "sglang"
    if num_states == 0:
        return Believed((), _final_only(info), engine)
    if target is None:
        return Believed(None, "the target is not known, and SGLang's rule depends on it", engine)
    if not info:
        return Believed(None, _untold(num_states, target), engine)
    return Believed(*_from_settings(info, folder, num_states, target), engine)


def _from_settings(
    info: dict[str, Any], folder: Path, num_states: int, target: TargetConfig
) -> tuple[tuple[int, ...] | None, str]:
    profile, told = _profile(info.get("version"))
    ids, where = _ids(info, folder)
    if ids is None and where:
        return None, where
    written = {} if ids is None else {profile.capture_keys[0]: ids}
    try:
        found = captured_points(profile, written, target.model_type, target.num_layers, num_states)
    except Eagle3RefError as error:
        return None, f"{INFO_FILE} names no ids, and SGLang has no default for this target: {error.found}"
    if found.failure is not None:
        return None, f"{INFO_FILE} does not fit this dump: {found.failure}"
    numbers = f"ids {list(ids)} of {where}" if ids is not None else "no ids in its settings, so the default"
    layers = ", ".join(map(str, found.points))
    return found.points, f"{INFO_FILE} says {numbers}, which {told} captures as the inputs of layers {layers}"


def _profile(version: Any) -> tuple[EngineProfile, str]:
    """Of the version; of the newest that was read for one that was not."""
    try:
        return engine_profile(f"sglang=={version}"), f"SGLang {version}"
    except Eagle3RefError:
        newest = engine_profile("sglang")
        return newest, f"SGLang {version} (its rule taken to be that of {newest.version})"


def _ids(info: dict[str, Any], folder: Path) -> tuple[list[int] | None, str]:
    """The ids and where they stand; None and "" when none were given, None and a reason when they cannot be seen.

    A relative path of the draft is looked up beside ``server_info.json``.
    """
    ids, draft = info.get(_IDS), info.get(_DRAFT)
    if ids is not None:
        return (ids, _IDS) if _are_ids(ids) else (None, f"{_IDS} of {INFO_FILE} is {ids!r}, which are no layer ids")
    if not isinstance(draft, str):
        captures = _DRAFT not in info or info.get(_CAPTURE)
        return None, "" if captures else f"{INFO_FILE} is of a server that captures nothing: no draft, no {_CAPTURE}"
    config = folder / draft / "config.json"
    if not config.exists():
        found = f"{INFO_FILE} names the draft {draft}, whose config.json has the layer ids and is not on this machine"
        return None, f"{found}: give --capture-points"
    fields = load_json(config)
    nested = fields.get(_NESTED) if isinstance(fields, dict) else None
    ids = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, dict) else None
    return (ids, "the draft's eagle_config") if _are_ids(ids) else (None, "")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _untold(num_states: int, target: TargetConfig) -> str:
    said = f"the dump does not say which {num_states} layers it has, only that they ascend"
    if num_states != _USUAL or target.num_layers < FEWEST_LAYERS:
        return f"{said}: {_SAVE_IT}, or give --capture-points"
    points = ",".join(map(str, default_capture_points(target.num_layers)))
    return f"{said}: {_SAVE_IT}, or give --capture-points ({points} if the server was given no layer ids)"


def _final_only(info: dict[str, Any]) -> str:
    algorithm = info.get("speculative_algorithm")
    said = f"{INFO_FILE} says speculative_algorithm {algorithm}" if algorithm else "no layer was captured"
    return (
        f"one state as wide as the target is its final one, which is what a server hands over under "
        f"--speculative-algorithm EAGLE or without a draft ({said}): use EAGLE3, "
        "or --enable-return-aux-hidden-states --speculative-algorithm EAGLE3 without a draft"
    )


def num_states(width: int, target: TargetConfig | None, doing: str) -> int:
    """A, of states packed side by side; 0 when they are the final one alone.

    Raises:
        Eagle3RefError: no multiple of the target's width.
    """
    return len(split_packed(torch.empty(0, width), target, doing)[0])


def split_packed(packed: Tensor, target: TargetConfig | None, doing: str) -> tuple[dict[str, Tensor], Tensor | None]:
    """The states [R, C] of [R, A * C], and no final one; or none, and the final one, if they are as wide as the target.

    Without a target the width of a state is not known: they stay together.

    Raises:
        Eagle3RefError: no multiple of the target's width.
    """
    width = packed.shape[1]
    if target is None:
        return {"hidden_states": packed}, None
    if width == target.hidden_size:
        return {}, packed
    if width == 0 or width % target.hidden_size:
        raise Eagle3RefError(
            doing,
            found=f"states {width} wide",
            expected=f"a multiple of {target.hidden_size}, the hidden_size of {target.name}",
            action="Name the target that the server ran.",
        )
    parts = packed.split(target.hidden_size, dim=1)
    return {f"aux_{i}": part.contiguous() for i, part in enumerate(parts)}, None

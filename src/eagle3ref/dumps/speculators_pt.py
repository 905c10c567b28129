"""Older hidden-state files of speculators, ``data_0.pt`` with a loss mask, nothing shifted.

* Releases 0.3 and 0.4 (read at their tags): ``input_ids``, ``loss_mask`` [T] and ``hidden_states``, a list of [T, C].
  Their vLLM worker keeps the *outputs* of the layers it is given, by default 2, n // 2, n - 3 and n - 1: one layer
  later than what vLLM hands a draft when it serves. ``data_config.json`` beside the files has the ids. The last of the
  list is the state before the final norm.
* Before, in research code: ``hidden_state`` [T, A * C] and ``target`` [T, C], the state behind the final norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import fields_of, ids_of, load_json, load_pt, refuse, tensor_of
from eagle3ref.dumps.layout import (
    answer_span,
    as_mask,
    files_by_id,
    files_in,
    first_readable,
    first_sequence,
    same_lengths,
    split_states,
    usual_points,
)

_SUFFIXES = (".pt",)
_CONFIG = "data_config.json"
_PROMPT_NOTE = "prompt: all before the last run of ones in loss_mask; what follows that run is dropped"
_LISTED_RULE = "speculators 0.3 and 0.4 keep the outputs of layers 2, n // 2, n - 3 and n - 1, unless told otherwise"
_JOINED_RULE = "the research code before speculators 0.3 took the usual layers"


def holds_speculators_pt(path: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    found = first_readable(files_in(path, _SUFFIXES), load_pt)
    return (
        isinstance(found, dict)
        and "input_ids" in found
        and (_is_listed(found) or {"hidden_state", "target"} <= set(found))
    )


def read_speculators_pt(path: Path, target: TargetConfig | None) -> Dump:
    """Open such a dump.

    Raises:
        Eagle3RefError: no file of that format, or a data_config.json that cannot be read.
    """
    files = files_by_id(path, _SUFFIXES)
    points, reason, normed = _believed(path, first_sequence(path, files.values(), _load), target)
    return Dump(
        path=path,
        format="speculators-pt",
        ids=tuple(files),
        load=lambda sequence_id: _load(files[sequence_id], sequence_id),
        capture_points=points,
        reason=reason,
        notes=(f"final state: {'behind' if normed else 'before'} the final norm, as that code wrote it", _PROMPT_NOTE),
        engine="vllm under speculators",
    )


def _believed(
    path: Path, first: DumpedSequence, target: TargetConfig | None
) -> tuple[tuple[int, ...] | None, str, bool]:
    """Capture points, why, and whether the final states are normed."""
    normed = bool(first.final_is_normed)
    config = (path if path.is_dir() else path.parent) / _CONFIG
    if not normed and config.is_file():
        ids = _layer_ids(config)
        points = tuple(layer_id + 1 for layer_id in ids[:-1])
        return (
            points,
            f"{_CONFIG} names the outputs of layers {ids}, and the output of layer k enters layer k + 1",
            False,
        )
    if normed:
        return *usual_points(len(first.states), target, _JOINED_RULE), True
    return *usual_points(len(first.states), target, _LISTED_RULE, later=1), False


def _layer_ids(config: Path) -> list[int]:
    fields = fields_of(load_json(config), config, ("hidden_states",))
    ids = fields_of(fields["hidden_states"], config, ("layer_ids",))["layer_ids"]
    if not isinstance(ids, list) or len(ids) < 2 or not all(isinstance(i, int) and i >= 0 for i in ids):
        refuse(config, f"hidden_states.layer_ids {ids!r}", "two layers or more, as whole numbers", "Correct the file.")
    return ids


def _load(path: Path, sequence_id: str = "") -> DumpedSequence:
    fields = fields_of(load_pt(path), path, ("input_ids", "loss_mask"))
    tokens, mask = ids_of(fields, "input_ids", path), as_mask(fields["loss_mask"], path)
    states, final = _listed(fields, path) if _is_listed(fields) else _joined(fields, path)
    lengths = {"input_ids": len(tokens), "loss_mask": len(mask), "the final state": len(final)}
    same_lengths(path, lengths | {label: len(state) for label, state in states.items()})
    start, end = answer_span(mask)
    return DumpedSequence(
        id=sequence_id,
        tokens=tokens[:end],
        prompt_length=start,
        states={label: state[:end] for label, state in states.items()},
        final=final[:end],
        final_is_normed=not _is_listed(fields),
    )


def _listed(fields: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], Tensor]:
    parts = {f"hidden_states[{i}]": part for i, part in enumerate(fields["hidden_states"])}
    tensors = {label: tensor_of(parts, label, path, 2) for label in parts}
    if len(tensors) < 2:
        refuse(path, f"{len(tensors)} hidden states", "at least one layer and the last one")
    return dict(list(tensors.items())[:-1]), list(tensors.values())[-1]


def _joined(fields: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], Tensor]:
    fields_of(fields, path, ("hidden_state", "target"))
    final = tensor_of(fields, "target", path, 2)
    joined = tensor_of(fields, "hidden_state", path, 2)
    return split_states(joined, final.shape[1], path, "hidden_state"), final


def _is_listed(fields: Mapping[str, Any]) -> bool:
    return isinstance(fields.get("hidden_states"), (list, tuple))

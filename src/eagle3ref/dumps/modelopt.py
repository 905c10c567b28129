"""Files of modelopt's collectors, ``{conversation_id}.pt`` (read at commit a2fbac7, August 2026).

One dictionary a conversation, nothing shifted: ``input_ids`` [T], ``aux_hidden_states`` [T, A * C], ``hidden_states``
[T, C], at times ``loss_mask``. Three collectors write them, and no key says which. Those on Hugging Face and on
TensorRT-LLM write the final state behind the norm; that on vLLM writes it before the norm, and although the trainer
looks for a flag ``hidden_states_prenorm``, the collector does not set it. Only the norm's weight can tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import fields_of, ids_of, load_pt, tensor_of
from eagle3ref.dumps.layout import (
    AnswerSpan,
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
_KEYS = ("input_ids", "aux_hidden_states")
_FLAGS = ("hidden_states_prenorm", "base_hidden_prenorm")
_NOTES = (
    "final state: modelopt's collectors differ on the final norm and seldom say so; the target's norm weight decides",
    "prompt: all before the last run of ones in loss_mask; a mask of ones alone tells nothing",
)


def holds_modelopt(path: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    found = _record(first_readable(files_in(path, _SUFFIXES), load_pt))
    return isinstance(found, dict) and set(_KEYS) <= set(found)


def read_modelopt(path: Path, target: TargetConfig | None) -> Dump:
    """Open such a dump.

    Raises:
        Eagle3RefError: no file of that format.
    """
    files = files_by_id(path, _SUFFIXES)
    first = first_sequence(path, files.values(), _load)
    points, reason = usual_points(
        len(first.states),
        target,
        "the collectors on Hugging Face and TensorRT-LLM take the outputs of layers 1, n // 2 - 1 and n - 4 by default "
        "(that on vLLM has no such default: its --aux-layers are capture points as they stand)",
    )
    return Dump(
        path=path,
        format="modelopt",
        ids=tuple(files),
        load=lambda sequence_id: _load(files[sequence_id], sequence_id),
        capture_points=points,
        reason=reason,
        notes=_NOTES,
        engine="a collector of modelopt",
    )


def _load(path: Path, sequence_id: str = "") -> DumpedSequence:
    record = _record(load_pt(path))
    # TensorRT-LLM's own file, before the collector has renamed it, says hidden_state.
    key = "hidden_state" if isinstance(record, dict) and "hidden_state" in record else "hidden_states"
    fields = fields_of(record, path, (*_KEYS, key))
    tokens = ids_of(fields, "input_ids", path)
    joined, final = tensor_of(fields, "aux_hidden_states", path, 2), tensor_of(fields, key, path, 2)
    lengths = {"input_ids": len(tokens), "aux_hidden_states": len(joined), key: len(final)}
    span = AnswerSpan(None, len(tokens))
    if "loss_mask" in fields:
        mask = as_mask(fields["loss_mask"], path)
        lengths["loss_mask"], span = len(mask), answer_span(mask)
    same_lengths(path, lengths)
    states = split_states(joined, final.shape[1], path, "aux_hidden_states")
    flag = next((bool(fields[flag]) for flag in _FLAGS if flag in fields), None)
    return DumpedSequence(
        id=sequence_id,
        tokens=tokens[: span.end],
        prompt_length=span.start,
        states={label: state[: span.end] for label, state in states.items()},
        final=final[: span.end],
        final_is_normed=None if flag is None else not flag,
    )


def _record(value: Any) -> Any:
    """TensorRT-LLM writes a list of one dictionary."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value

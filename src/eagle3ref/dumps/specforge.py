"""Offline files of SpecForge: ``scripts/prepare_hidden_states.py``, read at commit a6b6b02 (August 2026).

One ``torch.save`` dictionary a sequence, ``rows_0-2000/data_0.ckpt`` or ``.ckpt.gz``, nothing shifted: ``input_ids``
and ``loss_mask`` [T], ``aux_hidden_state`` [1, T, A * C], ``hidden_state`` [1, T, C]. SGLang runs the target, so the
states are joined in the order of layers, and the final one is behind the final norm. The trainer shifts as it loads.
"""

from __future__ import annotations

from pathlib import Path

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import fields_of, ids_of, load_pt, tensor_of
from eagle3ref.dumps.layout import (
    answer_span,
    as_mask,
    files_by_id,
    files_in,
    first_sequence,
    same_lengths,
    split_states,
    usual_points,
)

_SUFFIXES = (".ckpt.gz", ".ckpt")
_KEYS = ("input_ids", "loss_mask", "aux_hidden_state", "hidden_state")
_NOTES = (
    "final state: behind the final norm, as SGLang returns it",
    "prompt: all before the last run of ones in loss_mask; what follows that run is dropped",
)


def holds_specforge(path: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    return bool(files_in(path, _SUFFIXES))


def read_specforge(path: Path, target: TargetConfig | None) -> Dump:
    """Open such a dump.

    Raises:
        Eagle3RefError: no file of that format, or two of one id.
    """
    files = files_by_id(path, _SUFFIXES)
    first = first_sequence(path, files.values(), _load)
    points, reason = usual_points(
        len(first.states),
        target,
        "SpecForge takes the outputs of layers 1, n // 2 - 1 and n - 4 unless the draft's config names others",
    )
    return Dump(
        path=path,
        format="specforge",
        ids=tuple(files),
        load=lambda sequence_id: _load(files[sequence_id], sequence_id),
        capture_points=points,
        reason=reason,
        notes=_NOTES,
        engine="sglang under specforge",
    )


def _load(path: Path, sequence_id: str = "") -> DumpedSequence:
    fields = fields_of(load_pt(path), path, _KEYS)
    tokens = ids_of(fields, "input_ids", path)
    mask = as_mask(fields["loss_mask"], path)
    joined = tensor_of(fields, "aux_hidden_state", path, 2)
    final = tensor_of(fields, "hidden_state", path, 2)
    lengths = {"input_ids": len(tokens), "loss_mask": len(mask), "aux_hidden_state": len(joined)}
    same_lengths(path, lengths | {"hidden_state": len(final)})
    start, end = answer_span(mask)
    return DumpedSequence(
        id=sequence_id,
        tokens=tokens[:end],
        prompt_length=start,
        states={name: state[:end] for name, state in split_states(joined, final.shape[1], path, _KEYS[2]).items()},
        final=final[:end],
        final_is_normed=True,
    )

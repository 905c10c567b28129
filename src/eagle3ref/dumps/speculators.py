"""Hidden-state files of speculators, and of the vLLM connector that it uses: ``hs_0.safetensors``, one a sequence.

Since speculators 0.5 (read at commit c05b95b, August 2026) vLLM writes them itself, with ``method:
extract_hidden_states`` and a shared storage path: ``token_ids`` [T], ``hidden_states`` [T, L, C], nothing shifted. The
ids given to vLLM are capture points as they stand: id k is the stream that enters layer k, and ``launch_vllm.py``
appends the number of layers, so the last slot is the state *before* the final norm. Prompts and loss masks lie in an
arrow data set beside them.
"""

from __future__ import annotations

from pathlib import Path

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import fields_of, ids_of, load_safetensors, refuse, tensor_of
from eagle3ref.dumps.layout import (
    files_by_id,
    files_in,
    first_readable,
    first_sequence,
    same_lengths,
    usual_points,
)

_SUFFIXES = (".safetensors",)
_KEYS = ("token_ids", "hidden_states")
_NOTES = (
    "final state: the last slot, before the final norm, as launch_vllm.py asks for it",
    "the files hold no loss mask: where a prompt ends is taken from the prompts",
)


def holds_speculators(path: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    found = first_readable(files_in(path, _SUFFIXES), load_safetensors)
    return found is not None and set(_KEYS) <= set(found)


def read_speculators(path: Path, target: TargetConfig | None) -> Dump:
    """Open such a dump.

    Raises:
        Eagle3RefError: no file of that format.
    """
    files = files_by_id(path, _SUFFIXES)
    first = first_sequence(path, files.values(), _load)
    points, reason = usual_points(
        len(first.states),
        target,
        "launch_vllm.py asks vLLM for the inputs of layers 2, n // 2 and n - 3 and for the state behind the last layer",
    )
    return Dump(
        path=path,
        format="speculators",
        ids=tuple(files),
        load=lambda sequence_id: _load(files[sequence_id], sequence_id),
        capture_points=points,
        reason=reason,
        notes=_NOTES,
        engine="vllm, extract_hidden_states",
    )


def _load(path: Path, sequence_id: str = "") -> DumpedSequence:
    fields = fields_of(load_safetensors(path), path, _KEYS)
    tokens = ids_of(fields, "token_ids", path)
    states = tensor_of(fields, "hidden_states", path, 3)
    same_lengths(path, {"token_ids": len(tokens), "hidden_states": len(states)})
    slots = states.unbind(1)
    if len(slots) < 2:
        refuse(path, f"{len(slots)} slots", "at least one layer and the state behind the last one")
    return DumpedSequence(
        id=sequence_id,
        tokens=tokens,
        prompt_length=None,
        states={f"slot_{i}": slot for i, slot in enumerate(slots[:-1])},
        final=slots[-1],
        final_is_normed=False,
    )

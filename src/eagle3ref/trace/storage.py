"""One sequence as one safetensors file: the names and dtypes of its tensors, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.header import TraceHeader
from eagle3ref.trace.sequence import RecordedSequence

_OPTIONAL = ("argmax", "logprob_gap", "topk_ids", "topk_logprobs", "final_hidden_state")


def encode_sequence(sequence: RecordedSequence, header: TraceHeader) -> bytes:
    """The bytes of the file; the same sequence gives the same bytes."""
    fits_int32 = header.target.vocab_size <= 2**31
    tensors = {"tokens": sequence.tokens, "prompt_length": torch.tensor(sequence.prompt_length)}
    tensors |= {_state_name(point): states for point, states in sequence.aux_hidden_states.items()}
    for name in _OPTIONAL:
        tensor: Tensor | None = getattr(sequence, name)
        if tensor is not None:
            tensors[name] = tensor
    stored = {
        name: _own_copy(tensor, torch.int32 if fits_int32 and tensor.dtype == torch.int64 else tensor.dtype)
        for name, tensor in tensors.items()
    }
    # One metadata key only: safetensors writes several in an order that changes from run to run.
    return save(stored, metadata={"id": sequence.id})


def load_sequence(path: Path, header: TraceHeader) -> RecordedSequence:
    """Map the file into memory; the states are views of it, paged in when they are used.

    Raises:
        Eagle3RefError: not a safetensors file, a tensor missing or unknown, or contents that the header does
            not describe (see ``RecordedSequence``).
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: dict[str, str] = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        _refuse(path, f"a file that cannot be read ({error})", "a safetensors file")
    names = {_state_name(point) for point in header.capture_points}
    required = names | {"tokens", "prompt_length"}
    if not required <= set(tensors) <= required | set(_OPTIONAL):
        _refuse(path, f"the tensors {sorted(tensors)}", f"{sorted(required)}, and at most {list(_OPTIONAL)} besides")
    prompt_length = _as_int64(path, "prompt_length", tensors["prompt_length"])
    if prompt_length.dim():
        _refuse(path, f"prompt_length of shape {list(prompt_length.shape)}", "one number")
    sequence = RecordedSequence(
        id=metadata.get("id", ""),
        tokens=_as_int64(path, "tokens", tensors["tokens"]),
        prompt_length=int(prompt_length),
        aux_hidden_states={point: tensors[_state_name(point)] for point in header.capture_points},
        argmax=_as_int64(path, "argmax", tensors["argmax"]) if "argmax" in tensors else None,
        topk_ids=_as_int64(path, "topk_ids", tensors["topk_ids"]) if "topk_ids" in tensors else None,
        topk_logprobs=tensors.get("topk_logprobs"),
        final_hidden_state=tensors.get("final_hidden_state"),
        logprob_gap=tensors.get("logprob_gap"),
    )
    sequence.check_against(header)
    return sequence


def _state_name(point: int) -> str:
    return f"aux_hidden_states.{point}"


def _own_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """safetensors refuses tensors that share memory, and slices of one batch do."""
    return tensor.detach().to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)


def _as_int64(path: Path, name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.int32, torch.int64):
        _refuse(path, f"{name} in {tensor.dtype}", "int32 or int64")
    return tensor.to(torch.int64)


def _refuse(path: Path, found: str, expected: str) -> NoReturn:
    raise Eagle3RefError(
        f"reading {path}",
        found=found,
        expected=expected,
        action="Delete the file and run the capture again: it resumes, and records what is missing.",
    )

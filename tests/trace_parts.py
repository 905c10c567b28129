"""A small trace that tests record, read and break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader, TraceWriter

WIDTH, VOCAB, POINTS = 4, 50, (1, 2)


def make_header(**changes: object) -> TraceHeader:
    target = TargetIdentity("nano", "models/nano", "llama", 3, WIDTH, VOCAB, "ab" * 32)
    header = TraceHeader(
        target=target,
        tokenizer_sha256=None,
        capture_points=POINTS,
        dtype="bfloat16",
        sampling=RecordedSampling(temperature=0.0, top_p=1.0, top_k=0, seed=None),
        engine="eagle3ref 0.1.0",
        provenance={"date": "2026-01-01"},
    )
    return replace(header, **changes)


def make_sequence(number: int, full: bool = False, **changes: object) -> RecordedSequence:
    generator = torch.Generator().manual_seed(number)
    rows = 5 + number % 3

    def states() -> torch.Tensor:
        return torch.randn(rows, WIDTH, generator=generator).bfloat16()

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(VOCAB, shape, generator=generator)

    sequence = RecordedSequence(f"prompt/{number}", ids(rows), 2, {point: states() for point in POINTS})
    if full:
        logprobs = torch.log_softmax(torch.randn(rows, 3, generator=generator), dim=-1)
        sequence = replace(
            sequence, argmax=ids(rows), topk_ids=ids(rows, 3), topk_logprobs=logprobs, final_hidden_state=states()
        )
    return replace(sequence, **changes)


def record(folder: Path, numbers: range = range(3), full: bool = False) -> Path:
    with TraceWriter.open(folder, make_header()) as trace_writer:
        for number in numbers:
            sequence = make_sequence(number, full)
            if sequence.id not in trace_writer.done:
                trace_writer.add(sequence)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sequence_file(folder: Path, number: int) -> Path:
    return next(folder.glob(f"{number:06d}-*.safetensors"))


def refused(match: str, call: Callable[[], object]) -> str:
    """The message of the refusal; ``match`` is a regular expression."""
    with pytest.raises(Eagle3RefError, match=match) as caught:
        call()
    return str(caught.value)


def same(left: RecordedSequence, right: RecordedSequence) -> bool:
    assert (left.id, left.prompt_length) == (right.id, right.prompt_length)
    assert list(left.aux_hidden_states) == list(right.aux_hidden_states)
    names = ("tokens", "argmax", "topk_ids", "topk_logprobs", "final_hidden_state")
    pairs = [(getattr(left, name), getattr(right, name)) for name in names]
    pairs += [(left.aux_hidden_states[point], right.aux_hidden_states[point]) for point in left.aux_hidden_states]
    return all(
        (a is None and b is None) or (a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b))
        for a, b in pairs
    )

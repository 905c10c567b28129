"""Dumps made from a target in memory, right ones and ones that went wrong in every way known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from tiny import VOCAB, random_target
from torch import Tensor

from eagle3ref.dumps import Dump, DumpedSequence
from eagle3ref.target import KimiK25Target

Take = Callable[[dict[int, Tensor], Tensor], Mapping[str, Tensor]]  # streams by point, final state -> states by label


def deep_target(num_layers: int, seed: int = 0) -> KimiK25Target:
    """``random_target`` with another number of layers."""
    shallow = random_target()
    target = KimiK25Target(
        replace(shallow.config, num_layers=num_layers), replace(shallow.architecture, num_layers=num_layers)
    )
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in target.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + 0.2 * noise if name.endswith("norm.weight") else 0.15 * noise
    return target.requires_grad_(False).eval()


def texts(count: int = 2, length: int = 14, vocab_size: int = VOCAB) -> list[Tensor]:
    """Random token ids; the texts are not equally long."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(vocab_size, (length + number,), generator=generator) for number in range(count)]


def noisy(state: Tensor, share: float, seed: int) -> Tensor:
    """The state with noise of that share of each row's norm, in random directions."""
    noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(seed), dtype=state.dtype)
    return state + share * noise * state.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)


def make_dump(
    target: KimiK25Target,
    take: Take,
    *,
    sequences: list[Tensor] | None = None,
    noise: float = 0.0,
    dtype: torch.dtype = torch.float32,
    points: tuple[int, ...] | None = None,
    first_row: int = 0,
    final_is_normed: bool | None = None,
    takes_final: bool = False,
    with_tokens: bool = True,
) -> Dump:
    """What a hook would have written; ``take`` chooses the states.

    Args:
        target: what is run.
        take: the states of one sequence.
        sequences: token ids.
        noise: of another rounding or quantization, as a share of each row.
        dtype: of the dump.
        points: what the reader of the dump believes.
        first_row: as the dump says.
        final_is_normed: as the dump says of its final state.
        takes_final: whether the final state is dumped too.
        with_tokens: whether the dump holds its token ids.
    """
    made = {}
    for number, tokens in enumerate(texts() if sequences is None else sequences):
        output = target.forward(tokens[None], capture_points=range(target.config.num_layers + 1))
        streams = {point: state[0] for point, state in output.aux_hidden_states.items()}
        final = output.final_hidden_state[0]
        states = {
            label: noisy(state, noise, 100 * number + index).to(dtype)
            for index, (label, state) in enumerate(take(streams, final).items())
        }
        made[f"text-{number}"] = DumpedSequence(
            id=f"text-{number}",
            tokens=tokens if with_tokens else None,
            prompt_length=None,
            states=states,
            first_row=first_row,
            final=final if takes_final else None,
            final_is_normed=final_is_normed,
        )
    return Dump(Path("made"), "made", tuple(made), made.__getitem__, points, "made for a test")


def three(*points: int) -> Take:
    """``aux_0``, ``aux_1``, …: the streams at these points, in this order."""
    return lambda streams, _final: {f"aux_{index}": streams[point] for index, point in enumerate(points)}

"""The believed capture points against a run of the loaded target: a mixed-up order and foreign states show at once."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.dumps.convert import Converter
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import Target
from eagle3ref.target.base import device_of

_TOKENS = 128  # of the first sequence; a causal target's states do not depend on what follows
_ALIKE = 0.25  # relative error that another dtype and engine may bring


@torch.inference_mode()
def check_against_run(converter: Converter, target: Target, sequence_id: str) -> None:
    """Run the start of one sequence, and find for every state the layer that it is nearest to.

    Raises:
        Eagle3RefError: a state that is nearest to another layer than believed, or near to none.
    """
    sequence = converter.check(sequence_id)
    tokens = sequence.tokens[:_TOKENS]
    every = range(target.config.num_layers + 1)
    output = target.forward(tokens[None].to(device_of(target)), capture_points=every)
    own = {point: state[0].cpu() for point, state in output.aux_hidden_states.items()}
    found = []
    for point, state in sequence.aux_hidden_states.items():
        errors = {other: _relative_error(state[:_TOKENS], own[other]) for other in every}
        nearest = min(errors, key=lambda other: errors[other])
        if errors[nearest] * 2 < errors[point]:
            near = f"{nearest} (relative error {errors[nearest]:.2g}, {errors[point]:.2g} at {point})"
            found.append(f"a state believed to enter layer {point}, which is nearest to the one entering {near}")
        elif errors[point] > _ALIKE:
            found.append(f"a state believed to enter layer {point}, and like none (relative error {errors[point]:.2g})")
    if found:
        raise Eagle3RefError(
            f"importing {converter.dump.path}",
            found="; ".join(found),
            expected="states of the capture points in their order, as the target itself has them",
            action="Correct --capture-points, or the target; eagle3ref align shows every state against every layer.",
        )


def _relative_error(state: Tensor, own: Tensor) -> float:
    wide = own.double()
    return float((state.double() - wide).norm() / wide.norm())

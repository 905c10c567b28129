"""A patch as people put into SGLang to see hidden states: each forward of the target leaves what it computed.

The forwards are numbered, SGLang's own warm-up first. One leaves ``forward_<number>.pt``, a list of all captured states
and the final one, or a folder of that name with

    aux_0.pt, aux_1.pt, ...   [rows, C], one for each captured state, in the order that SGLang has them
    final.pt                  [rows, C], what goes into the head: after the final norm
    input_ids.pt, positions.pt   [rows]
"""

import os
from itertools import count
from pathlib import Path

import torch

FOLDER = "EAGLE3REF_DUMPS"  # set: where they go
LISTS = "EAGLE3REF_DUMPS_AS_LISTS"  # set: lists instead of folders


def take() -> None:
    """Wrap the logits processor, which every forward ends in, if dumps are asked for."""
    if FOLDER not in os.environ:
        return
    from sglang.srt.layers.logits_processor import LogitsProcessor

    forward, numbers = LogitsProcessor.forward, count()

    def dumping(self, input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states=None, *rest, **named):
        states = _separate(aux_hidden_states, hidden_states.shape[-1])
        if len(states) > 1:  # the draft has one
            named_states = {f"aux_{i}": state for i, state in enumerate(states)} | {"final": hidden_states}
            rows = {"input_ids": input_ids, "positions": logits_metadata.positions}
            _write(Path(os.environ[FOLDER]) / f"forward_{next(numbers):04d}", named_states, rows)
        return forward(self, input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states, *rest, **named)

    LogitsProcessor.forward = dumping


def _separate(states: object, width: int) -> list[torch.Tensor]:
    """Captured states, which SGLang has in a list or packed in one tensor."""
    if isinstance(states, torch.Tensor):
        return list(states.split(width, dim=-1))
    return [] if states is None else list(states)


def _write(path: Path, states: dict[str, torch.Tensor], rows: dict[str, torch.Tensor]) -> None:
    """The list of states, or a folder with them and what each row is."""
    if LISTS in os.environ:
        path.parent.mkdir(exist_ok=True)
        torch.save([_copied(state) for state in states.values()], path.with_suffix(".pt"))
        return
    path.mkdir(parents=True)
    for name, tensor in (states | rows).items():
        torch.save(_copied(tensor), path / f"{name}.pt")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()

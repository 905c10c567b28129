"""The places in a target whose values somebody may have dumped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["stream", "input_norm", "attention", "after_attention", "mlp_norm", "mlp", "final_norm"]


@dataclass(frozen=True, order=True)
class Boundary:
    """One place in a target.

    Args:
        kind: ``stream``: the residual stream entering layer ``layer``; ``num_layers`` is the one before the final norm.
            ``input_norm``: what the norm before attention gives. ``attention``: what attention gives, before it is
            added. ``after_attention``: the stream between attention and MLP. ``mlp_norm``: what the norm before the MLP
            gives. ``mlp``: what the MLP gives, before it is added. ``final_norm``: behind everything.
        layer: from 0.
        num_layers: of the target.
    """

    kind: Kind
    layer: int
    num_layers: int

    @property
    def capture_point(self) -> int | None:
        """Of a stream, its capture point; None of everything else, which no draft reads."""
        return self.layer if self.kind == "stream" else None

    def __str__(self) -> str:
        layer, last = self.layer, self.num_layers
        if self.kind == "stream":
            if layer == 0:
                return "embedding output (input of layer 0)"
            if layer == last:
                return f"state before the final norm (output of layer {last - 1})"
            return f"input of layer {layer} (output of layer {layer - 1})"
        return {
            "input_norm": f"output of input_layernorm in layer {layer}",
            "attention": f"output of attention in layer {layer}, before it is added to the stream",
            "after_attention": f"stream inside layer {layer}, between attention and MLP",
            "mlp_norm": f"output of the norm before the MLP in layer {layer}",
            "mlp": f"output of the MLP in layer {layer}, before it is added to the stream",
            "final_norm": "final state, after the final norm",
        }[self.kind]

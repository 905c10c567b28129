"""A target run once over a few sequences, every boundary shown as it passes: nothing of 61 layers is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from eagle3ref.align.boundary import Boundary, Kind
from eagle3ref.target import Target
from eagle3ref.target.kimi_walk import KimiWalk, Work

Visit = Callable[[Boundary, Sequence[Tensor]], None]  # one tensor [T, C] for each sequence


@torch.no_grad()
def walk_target(target: Target, sequences: Sequence[Tensor], visit: Visit, on_layer: Callable[[int], None]) -> None:
    """Show every boundary of the target to ``visit``, in the order of computing.

    A Kimi target takes all sequences through a layer before the next one, so that a streamed one reads its weights
    once. Of a transformers model the halves of a layer are shown where the norms have the usual names, and every
    boundary comes once for all sequences too.

    Args:
        target: any.
        sequences: int64 [T] each.
        visit: called with each boundary and its values.
        on_layer: called with the number of layers done.

    Raises:
        Eagle3RefError: token ids outside the vocabulary, or weights that cannot be read.
    """
    if isinstance(target, KimiWalk):
        _walk_kimi(target, sequences, visit, on_layer)
        return
    for boundary, states in _kept_boundaries(target, sequences).items():
        visit(boundary, states)
        if boundary.kind == "stream" and boundary.layer:
            on_layer(boundary.layer)


def _walk_kimi(target: KimiWalk, sequences: Sequence[Tensor], visit: Visit, on_layer: Callable[[int], None]) -> None:
    lengths, num_layers = [len(tokens) for tokens in sequences], target.config.num_layers
    flat = torch.cat(target.embed(sequences))
    with target.layers(0, Work.of_sequences(lengths)) as layers:
        for index, layer in enumerate(layers):
            flat = flat.to(layer.device)
            entering = flat.clone()
            with _norms_of(layer) as seen:
                layer.run(flat, lengths)
            halves = _halves(entering, {name: torch.cat(parts) for name, parts in seen.items()}, flat)
            for kind, states in halves.items():
                visit(Boundary(kind, index, num_layers), states.split(lengths))
            on_layer(index + 1)
    last = flat.to(target.device).split(lengths)
    visit(Boundary("stream", num_layers, num_layers), last)
    visit(Boundary("final_norm", num_layers, num_layers), target.finish(last))


def _kept_boundaries(target: Target, sequences: Sequence[Tensor]) -> dict[Boundary, list[Tensor]]:
    """All boundaries of a target that runs as one call; a few tokens of a model that fits the memory anyway."""
    from eagle3ref.target.transformers import TransformersTarget
    from eagle3ref.target.transformers_anatomy import Anatomy

    num_layers = target.config.num_layers
    layers = list(Anatomy.of(target.model).layers) if isinstance(target, TransformersTarget) else []
    kept: dict[Boundary, list[Tensor]] = {}
    for tokens in sequences:
        with ExitStack() as stack:
            seen = [stack.enter_context(_norms_of(layer)) for layer in layers]
            row = tokens.to(target.embedding().device)[None]
            output = target.forward(row, capture_points=range(num_layers + 1))
        streams = output.aux_hidden_states
        for index in range(num_layers):
            norms = {name: parts[0] for name, parts in seen[index].items()} if layers else {}
            for kind, states in _halves(streams[index], norms, streams[index + 1]).items():
                kept.setdefault(Boundary(kind, index, num_layers), []).append(states[0])
        kept.setdefault(Boundary("stream", num_layers, num_layers), []).append(streams[num_layers][0])
        kept.setdefault(Boundary("final_norm", num_layers, num_layers), []).append(output.final_hidden_state[0])
    return kept


def _halves(entering: Tensor, norms: dict[str, Tensor], leaving: Tensor) -> dict[Kind, Tensor]:
    """What is known of one layer: the stream entering it and, where its norms were seen, the places inside."""
    found: dict[Kind, Tensor] = {"stream": entering}
    if "input_norm" in norms:
        found["input_norm"] = norms["input_norm"]
    if "after_attention" in norms:
        middle = norms["after_attention"]
        found |= {"attention": middle - entering, "after_attention": middle}
        found |= {"mlp_norm": norms["mlp_norm"], "mlp": leaving - middle}
    return found


@contextmanager
def _norms_of(layer: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """While open, keep what goes through the two norms of a decoder layer, in the order of its calls."""
    seen: dict[str, list[Tensor]] = {}

    def before_attention(_norm: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        seen.setdefault("input_norm", []).append(output)

    def before_mlp(_norm: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen.setdefault("after_attention", []).append(args[0].clone())  # Kimi adds the MLP in place
        seen.setdefault("mlp_norm", []).append(output)

    norms = {name: module for name, module in layer.named_children() if name.endswith("layernorm")}
    with ExitStack() as hooks:
        if "input_layernorm" in norms:
            hooks.enter_context(norms["input_layernorm"].register_forward_hook(before_attention))
        # Gemma and OLMo 2 have norms behind attention and MLP too, and call the one behind attention post_attention.
        own = "pre_feedforward_layernorm" if "pre_feedforward_layernorm" in norms else "post_attention_layernorm"
        if own in norms and (own.startswith("pre") or "post_feedforward_layernorm" not in norms):
            hooks.enter_context(norms[own].register_forward_hook(before_mlp))
        yield seen

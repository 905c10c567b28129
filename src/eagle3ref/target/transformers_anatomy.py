"""Where the parts of a transformers model are, and whether it can serve as a target at all."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from eagle3ref.config import TargetConfig
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.base import Target

_UNLIMITED = 2**31 - 1
_ATTENTION = ("eager", "sdpa")  # those that take a mask of any shape
_CACHE_ARGUMENTS = ("cache", "past_key_values")  # renamed between transformers 5.17 and 5.24
_LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")


@dataclass(frozen=True)
class Anatomy:
    """The parts of a causal language model.

    Args:
        decoder: token ids in, state after the final norm out.
        layers: its decoder layers.
        embedding: input embedding.
        head: final state to logits, before factor and cap.
        logit_factor: Cohere's ``logit_scale``, or one over Granite's ``logits_scaling``.
        logit_cap: Gemma's ``final_logit_softcapping``: logits become ``cap * tanh(logits / cap)``.
        cache_argument: what the decoder calls its cache.
    """

    decoder: nn.Module
    layers: nn.ModuleList
    embedding: nn.Embedding
    head: nn.Linear
    logit_factor: float
    logit_cap: float | None
    cache_argument: str

    @classmethod
    def of(cls, model: PreTrainedModel) -> Anatomy:
        """Find the parts.

        Raises:
            Eagle3RefError: a part that is not there, or a kind of attention or cache that trees cannot use.
        """
        config = model.config.get_text_config(decoder=True)
        _check_attention(model, config)
        decoder, embedding, head = model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()
        stacks = [m for m in decoder.children() if isinstance(m, nn.ModuleList) and len(m) == config.num_hidden_layers]
        if len(stacks) != 1 or not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
            parts = f"{type(embedding).__name__} and {type(head).__name__}"
            found = f"{len(stacks)} stacks of {config.num_hidden_layers} layers, {parts}"
            _refuse(model, found, "one stack of decoder layers, an Embedding and a Linear head")
        fields = JsonFields(config.to_dict(), "model.config")
        scale, scaling = fields.optional_number("logit_scale"), fields.optional_number("logits_scaling")
        return cls(
            decoder=decoder,
            layers=stacks[0],
            embedding=embedding,
            head=head,
            logit_factor=(scale or 1.0) / (scaling or 1.0),
            logit_cap=fields.optional_number("final_logit_softcapping"),
            cache_argument=_cache_argument(model, decoder),
        )


def config_of_model(model: PreTrainedModel) -> TargetConfig:
    """The ``TargetConfig`` of a model that was handed over in memory."""
    config = model.config.get_text_config(decoder=True)
    fields = JsonFields(config.to_dict(), "model.config")
    generation = getattr(model, "generation_config", None)
    extra = JsonFields({} if generation is None else generation.to_dict(), "model.generation_config")
    ends = {*(fields.integers("eos_token_id") or ()), *(extra.integers("eos_token_id") or ())}
    return TargetConfig(
        name=model.config.name_or_path or type(model).__name__,
        path="",
        model_type=model.config.model_type,
        # As attributes: older architectures write these under names of their own, such as n_layer.
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_position_embeddings=getattr(config, "max_position_embeddings", _UNLIMITED),
        eos_token_ids=tuple(sorted(ends)),
        architecture=type(model).__name__,
    )


def check_against_plain_runs(target: Target, model: PreTrainedModel) -> None:
    """Two continuations of one token, as siblings of a tree and each on its own, must give the same.

    An architecture that ignores the mask, the positions or the cache, or does something to its logits that is not
    known here, shows it on three tokens.

    Raises:
        Eagle3RefError: the two differ by more than rounding explains, or the model's own code fails.
    """
    try:
        _compare_with_plain_runs(target, model)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        found = f"its own {type(error).__name__} on three tokens: {error}"
        _refuse(model, found, "a forward with a tree's mask", error)


@torch.no_grad()
def _compare_with_plain_runs(target: Target, model: PreTrainedModel) -> None:
    size, device = target.config.vocab_size, target.embedding().device
    root, first, second = ((torch.arange(3, device=device) + size // 2) % size).tolist()
    alone = torch.tensor([[root, first], [root, second]], device=device)
    points = range(target.config.num_layers + 1)
    plain = target.forward(alone, capture_points=points)
    shapes = {tuple(state.shape) for state in plain.aux_hidden_states.values()}
    if shapes != {(2, 2, target.config.hidden_size)}:
        _refuse(model, f"layers that pass on {sorted(shapes)}", "one residual stream of the model's width")
    wanted = model(input_ids=alone, use_cache=False).logits
    _check_close(model, "its logits", target.logits(plain.final_hidden_state), wanted)

    cache = target.new_cache(1)
    target.forward(alone[:1, :1], cache=cache)
    cache.keep(alone.new_zeros(1, 1), alone.new_ones(1))
    siblings = target.forward(
        alone[:, 1][None],
        cache=cache,
        positions=alone.new_ones(1, 2),
        mask=torch.eye(2, dtype=torch.bool, device=device)[None],
    )
    _check_close(model, "the states of two siblings", siblings.final_hidden_state[0], plain.final_hidden_state[:, 1])


def _check_close(model: PreTrainedModel, what: str, found: Tensor, wanted: Tensor) -> None:
    # Layers that compute in fp32 whatever the dtype set the floor; the root leaves room for many roundings.
    tolerance = max(torch.finfo(wanted.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
    difference = float((found - wanted).norm() / wanted.norm())
    if not difference <= tolerance:
        _refuse(
            model,
            f"{what} off by {difference:.2g} of their norm from the model's own",
            f"at most {tolerance:.2g}: attention that obeys mask, positions and cache, and logits of a known kind",
        )


def _check_attention(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    kind = config._attn_implementation
    if kind not in _ATTENTION:
        _refuse(model, f"attention {kind!r}", f"{' or '.join(_ATTENTION)}, which take a tree's mask")
    longest = getattr(config, "max_position_embeddings", _UNLIMITED)
    for i, layer in enumerate(DynamicCache(config=config).layers):
        window = getattr(layer, "sliding_window", _UNLIMITED)
        plain = type(layer) is DynamicLayer or (isinstance(layer, DynamicLayer) and longest <= window < _UNLIMITED)
        if not plain:
            size = f" of {window} tokens" if window < _UNLIMITED else ""
            _refuse(model, f"{type(layer).__name__}{size} in layer {i}", "keys and values of the whole context")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in _LENGTH_DEPENDENT_ROPES:
        _refuse(model, f"rope type {rope!r}", "rotations that do not depend on the longest sequence of the batch")


def _cache_argument(model: PreTrainedModel, decoder: nn.Module) -> str:
    accepted = inspect.signature(decoder.forward).parameters
    names = [name for name in _CACHE_ARGUMENTS if name in accepted]
    missing = {"position_ids", "attention_mask"} - accepted.keys()
    if not names or missing:
        found = f"a decoder without {', '.join(sorted(missing) or ['a key-value cache'])}"
        _refuse(model, found, "one that takes attention_mask, position_ids and a key-value cache")
    return names[0]


def _refuse(model: PreTrainedModel, found: str, expected: str, cause: Exception | None = None) -> NoReturn:
    raise Eagle3RefError(
        f"using {type(model).__name__} as a target",
        found=found,
        expected=expected,
        action="A target must hide tree rows from each other and forget rejected ones. Use another model or class.",
    ) from cause

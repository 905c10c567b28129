"""The census of a Kimi-K2 checkpoint: every weight of the model and the tensors it lies in, all checked by header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.config import KimiK25Config
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint.foreign import refuse_foreign_formats
from eagle3ref.target.checkpoint.header import StoredTensor
from eagle3ref.target.checkpoint.layout import expert_shapes, layer_shapes, num_experts
from eagle3ref.target.checkpoint.shards import Shards
from eagle3ref.target.checkpoint.stored_weight import StoredWeight, WeightFinder
from eagle3ref.target.checkpoint.wording import count

# What stands before "layers.", and the name of the head: Moonshot's K2.5 and transformers' save of it; K2, K2-Thinking
# and transformers' save of the text model; newer wrappers of transformers.
LAYOUTS = (
    ("language_model.model.", "language_model.lm_head.weight"),
    ("model.", "lm_head.weight"),
    ("model.language_model.", "lm_head.weight"),
)
_VISION = ("vision_tower.", "mm_projector.")
_ROTARY_BUFFER = "rotary_emb.inv_freq"  # K2-Instruct carries them; they follow from config.json


@dataclass(frozen=True)
class LayerCensus:
    """One decoder layer.

    Args:
        index: 0-based.
        weights: parameter name inside the layer -> weight, without the routed experts.
        experts: of each routed expert the same for its ``gate_proj``, ``up_proj`` and ``down_proj``; () when dense.
    """

    index: int
    weights: dict[str, StoredWeight]
    experts: tuple[dict[str, StoredWeight], ...]

    def parameters(self) -> dict[str, StoredWeight]:
        """Every parameter as ``KimiLayer`` names it, those of the routed experts last."""
        routed = {
            f"mlp.experts.{index}.{name}": weight
            for index, expert in enumerate(self.experts)
            for name, weight in expert.items()
        }
        return self.weights | routed

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(weight.num_bytes for weight in self.parameters().values())


@dataclass(frozen=True)
class Census:
    """All that the language model is made of.

    Args:
        folder: of the checkpoint.
        prefix: what stands before ``layers.`` in its names.
        embedding, norm, lm_head: the weights outside the layers; always ``plain``.
        layers: in their order.
        num_tensors: stored tensors of the language model.
        num_passed_over: those of vision tower and projector, and rotary buffers.
    """

    folder: Path
    prefix: str
    embedding: StoredWeight
    norm: StoredWeight
    lm_head: StoredWeight
    layers: tuple[LayerCensus, ...]
    num_tensors: int
    num_passed_over: int

    def all_weights(self) -> Iterator[StoredWeight]:
        """Every weight, from the embedding to the head."""
        yield self.embedding
        for layer in self.layers:
            yield from layer.parameters().values()
        yield from (self.norm, self.lm_head)

    @property
    def num_bytes(self) -> int:
        """Bytes of the language model on disk."""
        return sum(weight.num_bytes for weight in self.all_weights())


def open_census(folder: str | Path) -> Census:
    """The census of a checkpoint folder; see ``Shards.open`` and ``take_census`` for what it refuses."""
    return take_census(Shards.open(folder), KimiK25Config.from_folder(folder))


def take_census(shards: Shards, architecture: KimiK25Config) -> Census:
    """Find every weight that the settings call for, before any of them is read.

    Raises:
        Eagle3RefError: a quantization that is not read, or tensors that are missing, unknown, or of another dtype or
            shape than config.json says; all are counted, the first three named.
    """
    text = {
        name: tensor
        for name, tensor in shards.tensors.items()
        if not (is_vision(name) or name.endswith(_ROTARY_BUFFER))
    }
    refuse_foreign_formats(shards.folder, text)
    finder = WeightFinder(text)
    prefix, head = _layout(text)
    width = architecture.hidden_size
    table = (architecture.vocab_size, width)
    census = Census(
        folder=shards.folder,
        prefix=prefix,
        embedding=finder.find(f"{prefix}embed_tokens.weight", table),
        norm=finder.find(f"{prefix}norm.weight", (width,)),
        lm_head=finder.find(head, table),
        layers=tuple(_layer(finder, prefix, architecture, index) for index in range(architecture.num_layers)),
        num_tensors=len(text),
        num_passed_over=len(shards.tensors) - len(text),
    )
    unknown = [f"unknown {tensor}" for name, tensor in text.items() if name not in finder.used]
    _refuse_problems(shards.folder, finder.problems + unknown)
    return census


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to the vision tower or its projector."""
    return name.removeprefix("model.").startswith(_VISION)


def _layout(text: dict[str, StoredTensor]) -> tuple[str, str]:
    for prefix, head in LAYOUTS:
        if any(f"{prefix}{name}" in text for name in ("embed_tokens.weight", "norm.weight")):
            return prefix, head
    return LAYOUTS[0]  # every tensor will be missing, and says so


def _layer(finder: WeightFinder, prefix: str, architecture: KimiK25Config, index: int) -> LayerCensus:
    start = f"{prefix}layers.{index}."
    weights = {name: finder.find(start + name, shape) for name, shape in layer_shapes(architecture, index).items()}
    shapes = expert_shapes(architecture).items()
    experts = tuple(
        {name: finder.find(f"{start}mlp.experts.{expert}.{name}", shape) for name, shape in shapes}
        for expert in range(num_experts(architecture, index))
    )
    return LayerCensus(index, weights, experts)


def _refuse_problems(folder: Path, problems: list[str]) -> None:
    if problems:
        shown, rest = "; ".join(problems[:3]), len(problems) - 3
        raise Eagle3RefError(
            f"checking the tensors of {folder}",
            found=f"{count(len(problems), 'problem')}: {shown}" + (f"; and {rest:,} more" if rest > 0 else ""),
            expected="the tensors that config.json calls for, and no others",
            action="The download is incomplete, or the weights and config.json do not belong together.",
        )

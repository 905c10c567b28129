"""Kimi-K2.5's text model in plain PyTorch, its weights resident on one device or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from eagle3ref.config import KimiK25Config, TargetConfig
from eagle3ref.nn import RMSNorm
from eagle3ref.target.checkpoint import DequantizeInt4, open_census
from eagle3ref.target.int4 import dequantize_int4 as dequantize_int4_in_torch
from eagle3ref.target.kimi_head import HEAD_ROWS
from eagle3ref.target.kimi_layer import KimiLayer
from eagle3ref.target.kimi_walk import KimiWalk, Work
from eagle3ref.target.loading import assign_weights, load_layer
from eagle3ref.target.placement import place


class KimiModel(nn.Module):
    """Embedding, layers, final norm; parameter names are the checkpoint's, after ``model.``."""

    def __init__(self, config: KimiK25Config, layers: Sequence[KimiLayer]) -> None:
        super().__init__()
        # With a weight of its own: on the meta device its random one would import torch._dynamo, which takes seconds.
        size = config.vocab_size, config.hidden_size
        self.embed_tokens = nn.Embedding(*size, _weight=torch.zeros(size))
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class KimiK25Target(KimiWalk, nn.Module):
    """A ``LayerMajorTarget`` made of Kimi-K2.5's own files, all layers resident.

    Args:
        config: what every target has.
        architecture: the text model's settings.
        latent_norm_eps: epsilon of ``q_a_layernorm`` and ``kv_a_layernorm``. SGLang and vLLM use ``rms_norm_eps``,
            which is the default here; transformers leaves 1e-6.
        layers: ready-made ones; made here when None.
    """

    def __init__(
        self,
        config: TargetConfig,
        architecture: KimiK25Config,
        *,
        latent_norm_eps: float | None = None,
        layers: Sequence[KimiLayer] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.architecture = config, architecture
        if layers is None:
            eps = architecture.rms_norm_eps if latent_norm_eps is None else latent_norm_eps
            layers = [KimiLayer(architecture, index, eps) for index in range(architecture.num_layers)]
        self.model = KimiModel(architecture, layers)
        self.output = nn.Linear(architecture.hidden_size, architecture.vocab_size, bias=False)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        latent_norm_eps: float | None = None,
        packed: bool | None = None,
        dequantize_int4: DequantizeInt4 = dequantize_int4_in_torch,
    ) -> KimiK25Target:
        """Load a checkpoint folder. INT4 weights become bf16-rounded values, as in the engines, now or when needed.

        Args:
            folder: config.json and the shards.
            device: one, or several with commas in between: each gets a block of consecutive layers, about as many
                bytes as the others; the first one also embedding, final norm and head.
            dtype: of weights and activations.
            latent_norm_eps: see above.
            packed: keep routed experts as they are stored and expand each one when it is used, which gives the same
                bits. None: only if the expanded model does not fit the free memory.
            dequantize_int4: ``target.int4.dequantize_int4``, or a twin of it.

        Raises:
            Eagle3RefError: a tensor is missing, unknown or of the wrong shape, a file is damaged, or the model does not
                fit the devices even packed.
        """
        config, architecture = TargetConfig.from_folder(folder), KimiK25Config.from_folder(folder)
        eps = architecture.rms_norm_eps if latent_norm_eps is None else latent_norm_eps
        census = open_census(folder)
        placement = place(census, device, dtype, packed)
        layers = []
        for index, layer_device in enumerate(placement.devices):
            layer = census.layers[index]
            layers.append(load_layer(layer, architecture, eps, layer_device, dtype, placement.packed, dequantize_int4))
        with torch.device("meta"):
            target = cls(config, architecture, layers=layers)
        shared = {"model.embed_tokens.weight": census.embedding, "model.norm.weight": census.norm}
        shared["output.weight"] = census.lm_head
        assign_weights(target, shared, device=placement.first, dtype=dtype)
        return target.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        """Of embedding and head."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.model.embed_tokens.weight.dtype

    def layers(self, first: int, work: Work) -> AbstractContextManager[Iterator[KimiLayer]]:
        """See ``KimiWalk.layers``."""
        del work  # nothing bounds it but the device's memory
        return nullcontext(cast("KimiLayer", layer) for layer in self.model.layers[first:])

    def embed_rows(self, tokens: Tensor) -> Tensor:
        """See ``KimiWalk.embed_rows``."""
        rows: Tensor = self.model.embed_tokens(tokens)
        return rows

    def final_norm(self) -> RMSNorm:
        """See ``KimiWalk.final_norm``."""
        return self.model.norm

    def head(self) -> AbstractContextManager[Iterator[Tensor]]:
        """See ``KimiWalk.head``."""
        return nullcontext(iter(self.output.weight.split(HEAD_ROWS)))

    def logits(self, final_hidden_state: Tensor) -> Tensor:
        """See ``Target.logits``."""
        logits: Tensor = self.output(final_hidden_state)
        return logits

    def embedding(self) -> Tensor:
        """See ``Target.embedding``."""
        return self.model.embed_tokens.weight

    def lm_head(self) -> Tensor:
        """See ``Target.lm_head``."""
        return self.output.weight

"""Kimi-K2.5's text model in plain PyTorch, read from Moonshot's packed INT4 files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle3ref.config import KimiK25Config, TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import GatedMLP, KVCache, MLAttention, MoE, Prefix, RMSNorm, Rows
from eagle3ref.target.base import TargetCache, TargetOutput
from eagle3ref.target.inputs import Inputs, checked_inputs
from eagle3ref.target.int4 import dequantize_int4
from eagle3ref.weights import Weights

_FLOAT32_PARAMETERS = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")


class KimiLayer(nn.Module):
    """``x += attention(norm(x)); x += mlp(norm(x))``; the first layers have a dense MLP, the rest experts."""

    def __init__(self, config: KimiK25Config, index: int, latent_norm_eps: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = MLAttention(config.hidden_size, config.hidden_size, config.attention, latent_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = (
            GatedMLP(config.hidden_size, config.intermediate_size)
            if index < config.num_dense_layers
            else MoE(config.hidden_size, config.moe)
        )

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, prefix: Prefix | None) -> tuple[Tensor, Rows]:
        """x [B, 1, Q, C] -> the next residual stream, and what attention remembers of the Q rows."""
        attended, rows = self.self_attn(self.input_layernorm(x), positions, mask=mask, prefix=prefix)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), rows


class KimiModel(nn.Module):
    """Embedding, layers, final norm; parameter names are the checkpoint's, after ``model.``."""

    def __init__(self, config: KimiK25Config, latent_norm_eps: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(KimiLayer(config, i, latent_norm_eps) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Tensor, inputs: Inputs, capture_points: Sequence[int]) -> TargetOutput:
        """Run the layers over tokens [B, Q]."""
        cache = inputs.cache
        stream = self.embed_tokens(tokens).unsqueeze(1)  # [B, 1, Q, C]
        positions, mask = inputs.positions.unsqueeze(1), inputs.mask.unsqueeze(1)
        captured: dict[int, Tensor] = {}
        pending: list[Rows] = []
        prefixes = None if cache is None else cache.prefixes()
        for i, layer in enumerate(self.layers):
            if i in capture_points:
                captured[i] = stream.squeeze(1)
            stream, rows = layer(stream, positions, mask, None if prefixes is None else prefixes[i])
            pending.append(rows)
        if len(self.layers) in capture_points:
            captured[len(self.layers)] = stream.squeeze(1)
        if cache is not None:
            cache.offer(pending)
        return TargetOutput(captured, self.norm(stream).squeeze(1))


class KimiK25Target(nn.Module):
    """A ``Target`` made of Kimi-K2.5's own files, all layers resident.

    Args:
        config: what every target has.
        architecture: the text model's settings.
        latent_norm_eps: epsilon of ``q_a_layernorm`` and ``kv_a_layernorm``. SGLang and vLLM use ``rms_norm_eps``,
            which is the default here; transformers leaves 1e-6.
    """

    def __init__(
        self, config: TargetConfig, architecture: KimiK25Config, *, latent_norm_eps: float | None = None
    ) -> None:
        super().__init__()
        self.config, self.architecture = config, architecture
        self.model = KimiModel(architecture, architecture.rms_norm_eps if latent_norm_eps is None else latent_norm_eps)
        self.output = nn.Linear(architecture.hidden_size, architecture.vocab_size, bias=False)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        latent_norm_eps: float | None = None,
    ) -> KimiK25Target:
        """Load a checkpoint folder. INT4 weights are dequantized to bf16-rounded values, as the engines do.

        Raises:
            Eagle3RefError: a tensor is missing, unknown or of the wrong shape, or a file is damaged.
        """
        with torch.device("meta"):
            target = cls(
                TargetConfig.from_folder(folder), KimiK25Config.from_folder(folder), latent_norm_eps=latent_norm_eps
            )
        weights = Weights(folder)
        prefix = "language_model." if any(name.startswith("language_model.") for name in weights.names) else ""
        _refuse_unknown_names(target, weights, prefix)
        load_parameters(target.model, weights, f"{prefix}model.", device=device, dtype=dtype)
        load_parameters(target.output, weights, f"{prefix}lm_head.", device=device, dtype=dtype)
        return target.requires_grad_(False).eval()

    def new_cache(self, batch_size: int) -> KVCache:
        """An empty latent cache."""
        return KVCache(self.architecture.num_layers, batch_size, self.embedding().device)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: TargetCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        capture_points: Sequence[int] = (),
    ) -> TargetOutput:
        """See ``Target.forward``."""
        inputs = checked_inputs(self.config, tokens, cache, positions, mask, capture_points)
        output: TargetOutput = self.model(tokens, inputs, capture_points)
        return output

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


def load_parameters(
    module: nn.Module, weights: Weights, prefix: str, *, device: str | torch.device, dtype: torch.dtype
) -> None:
    """Fill a module made on the meta device from the tensors ``prefix + parameter name``; INT4 ones are dequantized.

    One layer at a time will do: streaming loads a ``KimiLayer``, runs it and drops it.
    """
    state = {}
    for name, parameter in module.named_parameters():
        tensor = _read(weights, prefix + name)
        if tensor.shape != parameter.shape:
            raise Eagle3RefError(
                f"loading {weights.folder}",
                found=f"{prefix}{name} of shape {tuple(tensor.shape)}",
                expected=f"{tuple(parameter.shape)}, by config.json",
                action="The weights and config.json do not belong together.",
            )
        keeps_float32 = name.endswith(_FLOAT32_PARAMETERS)
        wanted = torch.promote_types(dtype, torch.float32) if keeps_float32 else dtype
        state[name] = tensor.to(device=device, dtype=wanted)
    module.load_state_dict(state, assign=True)


def _read(weights: Weights, name: str) -> Tensor:
    stem = name.removesuffix(".weight")
    if f"{stem}.weight_packed" not in weights:
        return weights.read(name)
    if name in weights:
        raise Eagle3RefError(
            f"loading {weights.folder}",
            found=f"both {name} and {stem}.weight_packed",
            expected="one of them",
            action="Remove the one that is out of date.",
        )
    packed, scale, shape = (weights.read(f"{stem}.weight_{part}") for part in ("packed", "scale", "shape"))
    return dequantize_int4(packed, scale, shape, stem)


def _refuse_unknown_names(target: KimiK25Target, weights: Weights, prefix: str) -> None:
    """Every text tensor must have a place. The vision tower, the projector and stray rotary buffers are not text."""
    expected = {f"{prefix}model.{name}" for name, _ in target.model.named_parameters()} | {f"{prefix}lm_head.weight"}
    not_text = ("vision_tower.", "mm_projector.", "model.mm_projector.")
    unknown = sorted(
        name
        for name in weights.names
        if _plain_name(name) not in expected
        and not name.startswith(not_text)
        and not name.endswith("rotary_emb.inv_freq")
    )
    if unknown:
        raise Eagle3RefError(
            f"loading {weights.folder}",
            found=f"{len(unknown)} tensors that Kimi-K2.5 does not have, e.g. {unknown[0]}",
            expected="Moonshot's names: bf16 weights, or INT4 as weight_packed, weight_scale, weight_shape",
            action="Another quantization (FP8, NVFP4, MXFP4) is not read; use Moonshot's own files.",
        )


def _plain_name(name: str) -> str:
    for part in ("_packed", "_scale", "_shape"):
        if name.endswith(f".weight{part}"):
            return name.removesuffix(part)
    return name

"""Training of the nano target, with quantization in the loop for its INT4 experts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from eagle3ref.config import KimiK25Config, MLAConfig, MoEConfig, RopeConfig, TargetConfig
from eagle3ref.nano.corpus import VOCAB_SIZE, random_windows
from eagle3ref.nn import MoE
from eagle3ref.target.int4 import quantize_int4, scale_int4
from eagle3ref.target.kimi_k25 import KimiK25Target

# Kimi-K2.5's rope block; sizes are the smallest that make the pair interesting.
ROPE = RopeConfig(
    dim=16,
    theta=50000.0,
    type="yarn",
    factor=64.0,
    original_max_position_embeddings=4096,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale_all_dim=1.0,
)
ATTENTION = MLAConfig(
    num_heads=4,
    q_lora_rank=80,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    rope=ROPE,
)
MOE = MoEConfig(8, 2, 1, intermediate_size=96, routed_scaling_factor=2.0, normalize_weights=True)
ARCHITECTURE = KimiK25Config(
    num_layers=8,
    hidden_size=160,
    vocab_size=VOCAB_SIZE,
    intermediate_size=448,
    num_dense_layers=1,
    rms_norm_eps=1e-5,
    attention=ATTENTION,
    moe=MOE,
)
CONTEXT = 256
BATCH = 8
PEAK_LEARNING_RATE = 3e-3
QUANTIZED_SHARE = 0.15  # of the steps, at the end
BIAS_STEP = 1e-3  # of the router's load balancing (DeepSeek-V3, arXiv 2412.19437, §2.1.2)


class _RoundToInt4(nn.Module):
    """Rounds a weight as its file will, and lets gradients through."""

    def forward(self, weight: Tensor) -> Tensor:
        rounded = scale_int4(*quantize_int4(weight.detach()))
        return weight + (rounded.float() - weight).detach()


def new_target(seed: int) -> KimiK25Target:
    """A target with seeded random weights."""
    torch.manual_seed(seed)
    layers, size = ARCHITECTURE.num_layers, ARCHITECTURE.hidden_size
    config = TargetConfig("nano", "", "kimi_k25", layers, size, VOCAB_SIZE, 262144, ())
    target = KimiK25Target(config, ARCHITECTURE)
    for name, parameter in target.named_parameters():
        if parameter.ndim == 2:
            is_table = name.endswith(("embed_tokens.weight", "output.weight"))
            is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            spread = 0.02 if is_table else 0.5 / math.sqrt(parameter.shape[1])
            nn.init.normal_(parameter, std=spread / (math.sqrt(2 * ARCHITECTURE.num_layers) if is_residual else 1))
    return target


def train_target(stream: Tensor, steps: int, seed: int, report: Callable[[int, float], None]) -> KimiK25Target:
    """Train on random windows of a token stream.

    Args:
        stream: int64 [T].
        steps: optimizer steps of ``BATCH`` windows of ``CONTEXT`` tokens.
        seed: of weights and windows.
        report: called with (step, loss in nats per token).
    """
    target = new_target(seed)
    generator = torch.Generator().manual_seed(seed)
    routers = [layer.mlp.gate for layer in target.model.layers if isinstance(layer.mlp, MoE)]
    loads = [_watch_load(router) for router in routers]
    optimizer = torch.optim.AdamW(_decay_groups(target), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), fused=True)
    for step in range(steps):
        if step == int(steps * (1 - QUANTIZED_SHARE)):
            _quantize_experts(target)
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * learning_rate_share(step, steps)
        windows = random_windows(stream, BATCH, CONTEXT + 1, generator)
        logits = target.logits(target(windows[:, :-1]).final_hidden_state)
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(target.parameters(), 1.0)
        optimizer.step()
        for router, load in zip(routers, loads, strict=True):
            router.e_score_correction_bias.add_(BIAS_STEP * torch.sign(load.mean() - load))
            load.zero_()
        report(step, loss.item())
    _keep_rounded_experts(target)
    return target.requires_grad_(False).eval()


def learning_rate_share(step: int, steps: int, warmup: int = 100) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def _decay_groups(module: nn.Module) -> list[dict[str, object]]:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim == 2]
    vectors = [parameter for parameter in trained if parameter.ndim != 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def _watch_load(router: nn.Module) -> Tensor:
    """A counter of how often each expert was chosen since it was last zeroed."""
    load = torch.zeros(MOE.num_experts)

    def count(_module: nn.Module, _inputs: object, output: tuple[Tensor, Tensor]) -> None:
        load.add_(torch.bincount(output[1].flatten(), minlength=MOE.num_experts))

    router.register_forward_hook(count)
    return load


def _expert_projections(target: KimiK25Target) -> list[nn.Module]:
    return [
        module
        for name, module in target.model.named_modules()
        if ".mlp.experts." in name and isinstance(module, nn.Linear)
    ]


def _quantize_experts(target: KimiK25Target) -> None:
    for projection in _expert_projections(target):
        parametrize.register_parametrization(projection, "weight", _RoundToInt4())


def _keep_rounded_experts(target: KimiK25Target) -> None:
    for projection in _expert_projections(target):
        parametrize.remove_parametrizations(projection, "weight", leave_parametrized=True)

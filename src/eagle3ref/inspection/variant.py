"""In what a draft's network differs from the plain EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Collection

from eagle3ref.config import FINAL_NORM_MEANING, DraftConfig, GQAConfig
from eagle3ref.draft.tensor_names import num_layers


def network_variant(config: DraftConfig, names: Collection[str]) -> tuple[str, ...]:
    """What is not as in the published head (arXiv 2503.01840): one phrase each, empty for the plain head.

    Args:
        config: the draft's.
        names: of its tensors, plain (``plain_names``).
    """
    layers = num_layers(names)
    phrases = {
        f"{layers} layers": layers > 1,
        "norm_before_residual": config.norm_before_residual,
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        f"final norm as in {FINAL_NORM_MEANING[config.final_norm]}": config.final_norm != "head",
        "fc bias": config.fc_bias,
        "mlp bias": config.mlp_bias,
        f"logit_scale {config.logit_scale:g}": config.logit_scale != 1.0,
        **_attention(config),
    }
    return tuple(phrase for phrase, is_so in phrases.items() if is_so)


def _attention(config: DraftConfig) -> dict[str, bool]:
    attention = config.attention
    if not isinstance(attention, GQAConfig):
        return {}
    windows = sorted({window for window in config.layer_windows if window is not None})
    return {
        "qkv bias": attention.bias,
        "o_proj bias": attention.output_bias,
        "query and key norms": attention.qk_norm_eps is not None,
        f"sliding window {', '.join(map(str, windows))}": bool(windows),
    }

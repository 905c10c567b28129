"""The draft's config as an engine reads it: what it ignores is reset to the plain EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eagle3ref.config import DraftConfig, GQAConfig
from eagle3ref.engines import EngineProfile
from eagle3ref.explain.case import DraftFiles


def _without_norm_of_state(key: str, config: DraftConfig) -> DraftConfig:
    said_by = config.final_norm_key.partition(" ")[0].rpartition(".")[2]
    return replace(config, final_norm="head") if said_by == key else config


def _plain_attention(config: DraftConfig) -> DraftConfig:
    attention = config.attention
    if not isinstance(attention, GQAConfig):
        return config
    return replace(config, attention=replace(attention, bias=False, output_bias=False))


def _without_windows(config: DraftConfig) -> DraftConfig:
    """Layers that all have full attention are no windows: such a config stays as it is."""
    return replace(config, layer_windows=()) if any(config.layer_windows) else config


# config key -> the config without it. A key that changes nothing in a given config gives an equal one.
_WITHOUT: dict[str, Callable[[DraftConfig], DraftConfig]] = {
    "norm_before_residual": lambda config: replace(config, norm_before_residual=False),
    "norm_before_fc": lambda config: replace(config, norm_before_fc=False),
    "fc_norm": lambda config: replace(config, fc_norm=False),
    "use_aux_norm": lambda config: replace(config, fc_norm=False),
    "norm_output": lambda config: _without_norm_of_state("norm_output", config),
    "return_hidden_post_norm": lambda config: _without_norm_of_state("return_hidden_post_norm", config),
    "attention_bias": _plain_attention,
    "qkv_bias": _plain_attention,
    "bias": lambda config: replace(config, fc_bias=False),
    "mlp_bias": lambda config: replace(config, mlp_bias=False),
    "logit_scale": lambda config: replace(config, logit_scale=1.0),
    "sliding_window": _without_windows,
    "layer_types": _without_windows,
}


def config_as_read(draft: DraftFiles, profile: EngineProfile) -> tuple[DraftConfig, list[str]]:
    """What the engine makes of a draft's config.

    Args:
        draft: whose config says how it was trained.
        profile: of the engine's version.

    Returns:
        The config that the engine runs, and the keys whose value it ignored; only those that make a difference here.
    """
    config, ignored = draft.config, []
    for key in profile.ignored_keys.get(draft.attention_kind, ()):
        if key == "use_aux_norm" and draft.keys.get("fc_norm"):  # its older name, which then says nothing more
            continue
        without = _WITHOUT.get(key)
        plain = config if without is None else without(config)
        if plain != config:
            ignored.append(key)
            config = plain
    if reads_residual_as_normed(draft, profile):
        config = replace(config, norm_before_residual=True)
    return config, ignored


def architecture_as_read(draft: DraftFiles, profile: EngineProfile) -> str:
    """The class that the engine looks for; vLLM puts its own into a file in the speculators layout.

    Source: vLLM 0.32.0, transformers_utils/config.py and transformers_utils/configs/speculators/algos.py.
    """
    keys = draft.keys
    is_layout = keys.get("speculators_model_type") == "eagle3" and keys.get("speculators_config") is not None
    if not is_layout or not _reads_speculators(draft, profile):
        return draft.config.architecture
    return "Eagle3Qwen3ForCausalLM" if keys.get("model_type") == "qwen3" else "Eagle3LlamaForCausalLM"


def reads_residual_as_normed(draft: DraftFiles, profile: EngineProfile) -> bool:
    """Whether vLLM takes a missing ``norm_before_residual`` for true: in the speculators layout it does.

    Source: vLLM 0.10.1 and later, transformers_utils/configs/speculators/algos.py; speculators itself writes the key.
    """
    return (
        _reads_speculators(draft, profile)
        and draft.config.family == "speculators"
        and "norm_before_residual" not in draft.keys
    )


def _reads_speculators(draft: DraftFiles, profile: EngineProfile) -> bool:
    """The layout and the key came with the same release, 0.10.1."""
    return profile.engine == "vLLM" and "norm_before_residual" in profile.honoured_keys.get(draft.attention_kind, ())

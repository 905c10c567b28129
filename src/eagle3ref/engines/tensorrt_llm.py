"""TensorRT-LLM's PyTorch backend, as far as its source was read; the rest is None."""

from __future__ import annotations

from eagle3ref.engines.profile import EngineProfile, Source, facts
from eagle3ref.engines.sources import no_figures, not_established

_CODE = Source("NVIDIA/TensorRT-LLM commit 001e670, tensorrt_llm/_torch/speculative/eagle3.py", "2026-11-29")
_MODELS = Source("NVIDIA/TensorRT-LLM main branch, single files of tensorrt_llm/_torch/models", "2026-11-29")
_UNKNOWN = not_established("2026-11-29")

TENSORRT_LLM = EngineProfile.stated(
    **facts(_CODE, engine="TensorRT-LLM", package="tensorrt-llm", versions="", version="main", since="2026-11-29"),
    # What the target hands over: post-layer ids, an option of the launch.
    **facts(
        _CODE,
        capture_setting="EagleDecodingConfig with eagle3_layers_to_capture",
        capture_keys=(),
        id_rules={"*": "plus_one"},
        last_point_targets=("*",),
        point_outside={"*": "its part of the states keeps what lay in memory"},
    ),
    **facts(_UNKNOWN, without_capture=None),
    # How the draft is loaded.
    **facts(
        _MODELS,
        architectures={
            "gqa": ("LlamaForCausalLMEagle3", "EAGLE3LlamaForCausalLM"),
            "mla": ("Eagle3DeepSeekV3ForCausalLM",),
        },
        embedding="the target's when the widths are equal",
        embedding_of="target",
        lm_head="the file's, or the target's",
        honoured_keys={"gqa": ("attention_bias", "fc_norm", "head_dim", "norm_output", "return_hidden_post_norm")},
        ignored_keys={"gqa": ("norm_before_residual",)},
    ),
    **facts(
        _UNKNOWN,
        missing_lm_head=None,
        missing_lm_head_is=None,
        unknown_tensors={},
        max_draft_layers={},
        fc_skipped_on_equal_width=None,
        short_rope=None,
    ),
    # The tree.
    trees=(True, _MODELS),
    **facts(
        _UNKNOWN,
        tree_kv=None,
        default_trees={},
        forces_chain_width=None,
        topk_refused_by=(),
        paged_topk_backends=None,
    ),
    # Verification and what is printed.
    **facts(
        _UNKNOWN,
        sampled_rule=None,
        sampled_options={},
        sampled_needs=None,
    ),
    **no_figures(_UNKNOWN),
    **facts(
        _CODE,
        flags={"num_steps": "max_draft_len", "capture_ids": "eagle3_layers_to_capture"},
        remarks=("An id of -1 means the final, normed state; this rule is not in id_rules.",),
    ),
)

"""SGLang's history of EAGLE-3: each profile is the one before it and the changes of one release.

The releases are those in which a change was found first, by reading the wheels on PyPI; pull requests are often older.
"""

from __future__ import annotations

from eagle3ref.config import AcceptanceRule
from eagle3ref.engines.formulas import drafts_per_draft_node
from eagle3ref.engines.newest_targets import (
    SGLANG_LAST_POINT_TARGETS,
    SGLANG_MARKED_TARGETS,
    SGLANG_NEWEST_TARGETS,
)
from eagle3ref.engines.profile import facts
from eagle3ref.engines.sglang_2025 import (
    DEEPSEEK_TARGETS,
    SGLANG_DEEPSEEK,
    SGLANG_FIRST,
    SGLANG_RATE,
    SGLANG_RATE_BY_NODE,
    SGLANG_RELEASES,
    with_targets,
)

_read, _pull, _span = SGLANG_RELEASES.read, SGLANG_RELEASES.pull, SGLANG_RELEASES.span
_KIMI_FAMILY = (*DEEPSEEK_TARGETS, "kimi_k25")
_TOO_FEW_SLOTS = "raises at the first forward: captured x of y aux hidden states"
_QWEN3_5 = ("qwen3_5", "qwen3_5_text")
_INDEX_ERROR = SGLANG_DEEPSEEK.point_outside["qwen3_moe"]

_CHAIN_BY_DEFAULT = SGLANG_RATE_BY_NODE.changed(
    **_span("0.5.8", "0.5.9", "0.5.8.post1"),
    default_trees=(
        {"LlamaForCausalLM": (5, 4, 8), "Grok1ForCausalLM": (5, 4, 8), "Grok1VForCausalLM": (5, 4, 8), "*": (3, 1, 4)},
        _read("0.5.8", "srt/server_args.py; before it, every architecture that is not named had 5/4/8"),
    ),
)

_HISTOGRAM = _CHAIN_BY_DEFAULT.changed(
    **_span("0.5.9", "0.5.10", "0.5.9"),
    request_fields=(
        {**SGLANG_RATE_BY_NODE.request_fields, "histogram": "spec_accept_histogram"},
        _read("0.5.9", "srt/managers/tokenizer_manager.py"),
    ),
    id_rules=(
        with_targets(SGLANG_RATE_BY_NODE.id_rules, ("exaone_moe", "glm_moe_dsa", "qwen3_next"), "plus_one"),
        _read("0.5.9", "srt/models"),
    ),
    point_outside=(
        {**SGLANG_DEEPSEEK.point_outside, "qwen3_next": _INDEX_ERROR},
        _read("0.5.9", "srt/models/qwen3_next.py"),
    ),
)

_KIMI_K25 = _HISTOGRAM.changed(
    **_span("0.5.10", "0.5.11", "0.5.10.post1"),
    id_rules=(
        with_targets(_HISTOGRAM.id_rules, ("kimi_k25",), "plus_one"),
        _read("0.5.10", "srt/models/kimi_k25.py hands the ids on to DeepSeek's class"),
    ),
)

_DRAFTS_ONLY_RATE = _KIMI_K25.changed(
    **_span("0.5.11", "0.5.12", "0.5.11"),
    **facts(
        _pull(23530, "2026-04-23", "0.5.11"),
        accept_rate=drafts_per_draft_node,
        accept_rate_meaning="accepted drafts per round / (num_draft_tokens - 1)",
        request_fields={
            **_HISTOGRAM.request_fields,
            "accepted_drafts": "spec_accepted_drafts",
            "proposed_drafts": "spec_proposed_drafts",
        },
    ),
    **facts(
        _read("0.5.11", "srt/environ.py: SGLANG_ENABLE_SPEC_V2 is on; the verification of that worker cuts nothing"),
        cuts_last_round_in_log=False,
        remarks=(
            *SGLANG_FIRST.remarks,
            "Trees (topk > 1) still run in the old worker, which cuts the last round in the log.",
        ),
    ),
    id_rules=(with_targets(_KIMI_K25.id_rules, ("qwen3_vl",), "plus_one"), _read("0.5.11", "srt/models/qwen3_vl.py")),
)

_EAGLE_3_1 = _DRAFTS_ONLY_RATE.changed(
    **_span("0.5.12", "0.5.13", "0.5.12.post1"),
    **facts(
        _read("0.5.12", "srt/models/llama_eagle3.py (PR #24663)"),
        honoured_keys={
            "gqa": (
                *("bias", "fc_norm", "head_dim", "norm_output", "num_aux_hidden_states", "target_hidden_size"),
                *("tie_word_embeddings", "use_aux_norm"),
            ),
            "mla": ("bias", "target_hidden_size", "tie_word_embeddings"),
        },
        ignored_keys={
            "gqa": (
                *("attention_bias", "logit_scale", "mlp_bias", "norm_before_fc", "norm_before_residual", "qkv_bias"),
                "sliding_window",
            ),
            "mla": (
                *("attention_bias", "fc_norm", "logit_scale", "norm_before_fc", "norm_before_residual", "norm_output"),
                *("num_aux_hidden_states", "use_aux_norm"),
            ),
        },
        max_draft_layers={"gqa": None, "mla": 1},
    ),
    **facts(
        _read("0.5.12", "srt/models/kimi_k25_eagle3.py is new"),
        architectures={"gqa": ("LlamaForCausalLMEagle3",), "mla": ("Eagle3DeepseekV2ForCausalLM",)},
        unknown_tensors={"gqa": "dropped", "mla": "warned"},
    ),
    request_fields=(
        {
            **_DRAFTS_ONLY_RATE.request_fields,
            "accepted_drafts": "spec_num_correct_drafts",
            "proposed_drafts": "spec_num_proposed_drafts",
            "histogram": "spec_correct_drafts_histogram",
        },
        _pull(24081, "2026-04-29", "0.5.12; the older names stay beside them to 0.5.20"),
    ),
    **facts(
        _read("0.5.12", "srt/models/gemma3_causal.py and gemma4_causal.py"),
        id_rules=with_targets(
            _DRAFTS_ONLY_RATE.id_rules, ("gemma3", "gemma3_text", "gemma4", "gemma4_text"), "plus_one"
        ),
        last_point_targets=("gemma3", "gemma3_text", "gemma4", "gemma4_text"),
    ),
)

_FIRST_ID_RULE = _EAGLE_3_1.changed(
    **_span("0.5.13", "0.5.14", "0.5.13.post1"),
    id_rules=(
        with_targets(_EAGLE_3_1.id_rules, (*_KIMI_FAMILY, "glm_moe_dsa", "glm4_moe_lite"), "plus_one_if_first_is_1"),
        _pull(25454, "2026-05-16", "0.5.13"),
    ),
    **facts(
        _pull(26506, "2026-05-27", "0.5.13"),
        honoured_keys={
            **_EAGLE_3_1.honoured_keys,
            "mla": ("bias", "fc_norm", "norm_output", "target_hidden_size", "tie_word_embeddings", "use_aux_norm"),
        },
        ignored_keys={
            **_EAGLE_3_1.ignored_keys,
            "mla": ("attention_bias", "logit_scale", "norm_before_fc", "norm_before_residual", "num_aux_hidden_states"),
        },
    ),
    remarks=(SGLANG_FIRST.remarks, _pull(25464, "2026-05-16", "0.5.13: the old worker is gone")),
    paged_topk_backends=(("flashinfer", "fa3", "triton"), _read("0.5.13", "srt/arg_groups/speculative_hook.py")),
    metrics=(
        {
            **SGLANG_RATE.metrics,
            "num_steps": "sglang:spec_num_steps",
            "num_draft_tokens": "sglang:spec_num_draft_tokens",
            "rounds": "sglang:spec_verify_calls_total",
        },
        _read("0.5.13", "metrics collector"),
    ),
)

_REJECTION = _FIRST_ID_RULE.changed(
    **_span("0.5.14", "0.5.17", "0.5.16"),
    **facts(
        _read("0.5.14", "srt/arg_groups/speculative_hook.py"),
        sampled_options={"--speculative-use-rejection-sampling": AcceptanceRule("rejection", "sampled")},
        sampled_needs="topk 1, both thresholds 1, and a draft whose vocabulary is the target's (no d2t)",
    ),
)

_BOUNDARY_IDS = _REJECTION.changed(
    **_span("0.5.17", "0.5.21", "0.5.20"),
    **facts(
        _pull(32334, "2026-07-24", "0.5.17"),
        honoured_keys={
            **_FIRST_ID_RULE.honoured_keys,
            "gqa": (*_EAGLE_3_1.honoured_keys["gqa"], "norm_before_fc"),
        },
        ignored_keys={
            **_FIRST_ID_RULE.ignored_keys,
            "gqa": tuple(key for key in _EAGLE_3_1.ignored_keys["gqa"] if key != "norm_before_fc"),
        },
    ),
    **facts(
        _read("0.5.17", "srt/models/gpt_oss.py; MiniMax-M3 in 0.5.18"),
        id_rules={
            **_FIRST_ID_RULE.id_rules,
            "gpt_oss": "plus_one_unless_last_is_n",
            "minimax_m3_vl": "plus_one_default_too",
        },
        last_point_targets=(*_EAGLE_3_1.last_point_targets, "gpt_oss"),
    ),
    point_outside=(
        {**_HISTOGRAM.point_outside, **dict.fromkeys((*_KIMI_FAMILY, "glm_moe_dsa"), _TOO_FEW_SLOTS)},
        _read("0.5.17", "srt/models/deepseek_v2.py packs into a fixed number of slots"),
    ),
    topk_refused_by=(
        (*SGLANG_FIRST.topk_refused_by, "cutedsl_mla"),
        _read("0.5.17", "srt/layers/attention/cutedsl_mla_backend.py"),
    ),
)

_STRICT_COIN = _BOUNDARY_IDS.changed(
    **_span("0.5.21", "0.5.22", "0.5.21"),
    sampled_rule=(AcceptanceRule("target_only"), _pull(35798, "2026-08-21", "0.5.21")),
)

SGLANG_0_5_23 = _STRICT_COIN.changed(
    **_span("0.5.22", "0.5.24", "0.5.23"),
    sampled_options=(
        {**_REJECTION.sampled_options, "--speculative-use-block-verification": AcceptanceRule("block", "sampled")},
        _read("0.5.22", "srt/arg_groups/speculative_hook.py"),
    ),
    topk_refused_by=(
        (*_BOUNDARY_IDS.topk_refused_by, "aiter", "dsv4"),
        _read("0.5.23", "srt/layers/attention/aiter_backend.py and deepseek_v4_backend.py; not looked for before"),
    ),
    **facts(
        _read("0.5.23", "srt/models; older releases were read for fewer targets"),
        id_rules=with_targets(_BOUNDARY_IDS.id_rules, (*_QWEN3_5, *SGLANG_NEWEST_TARGETS), "plus_one"),
        last_point_targets=(*_BOUNDARY_IDS.last_point_targets, "minimax_m3_vl", *SGLANG_LAST_POINT_TARGETS),
        point_outside={
            **_BOUNDARY_IDS.point_outside,
            **dict.fromkeys((*_QWEN3_5, *SGLANG_MARKED_TARGETS), _INDEX_ERROR),
        },
    ),
)

SGLANG = (
    SGLANG_FIRST,
    SGLANG_RATE,
    SGLANG_DEEPSEEK,
    SGLANG_RATE_BY_NODE,
    _CHAIN_BY_DEFAULT,
    _HISTOGRAM,
    _KIMI_K25,
    _DRAFTS_ONLY_RATE,
    _EAGLE_3_1,
    _FIRST_ID_RULE,
    _REJECTION,
    _BOUNDARY_IDS,
    _STRICT_COIN,
    SGLANG_0_5_23,
)

# The rate of the log changed twice under one name; these are the profiles that began each meaning, in time order.
SGLANG_LOG_ERAS = (SGLANG_RATE, SGLANG_RATE_BY_NODE, _DRAFTS_ONLY_RATE)

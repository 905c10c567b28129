"""SGLang from 0.5.2 to 0.5.7 (September 2025 to January 2026), release by release."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3ref.config import AcceptanceRule
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.engines.formulas import length_per_level, length_per_node, length_with_bonus
from eagle3ref.engines.profile import EngineProfile, IdRule, Source, facts
from eagle3ref.engines.sources import Releases

SGLANG_RELEASES = Releases(
    "SGLang",
    {
        "0.5.2": "2025-09-11",
        "0.5.3": "2025-10-06",
        "0.5.3.post1": "2025-10-09",
        "0.5.3.post2": "2025-10-15",
        "0.5.4.post2": "2025-11-01",
        "0.5.5.post3": "2025-11-17",
        "0.5.8": "2026-01-23",
        "0.5.9": "2026-02-23",
        "0.5.10": "2026-04-05",
        "0.5.11": "2026-05-05",
        "0.5.12": "2026-05-16",
        "0.5.13": "2026-06-11",
        "0.5.14": "2026-06-26",
        "0.5.17": "2026-08-08",
        "0.5.21": "2026-10-01",
        "0.5.22": "2026-10-16",
        "0.5.23": "2026-10-30",
    },
)
DEEPSEEK_TARGETS = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
_read, _pull, _span = SGLANG_RELEASES.read, SGLANG_RELEASES.pull, SGLANG_RELEASES.span
_INDEX_ERROR = "the server does not start: IndexError (a negative point counts from the end)"
_PLAIN_SHIFT = (
    "llama",
    "llama4",
    "mistral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_moe",
    "gpt_oss",
)
_MLA_BACKEND = "The backend flashinfer refuses topk > 1 for a draft with MLA."
_NARROW = "fc gets fewer states than it takes and fails on the width at the first forward"
_DEEPSEEK_ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GptOssForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
)


def with_targets(before: Mapping[str, IdRule], targets: tuple[str, ...], rule: IdRule) -> dict[str, IdRule]:
    """The rules of the release before, and one rule for these targets."""
    return {**before, **dict.fromkeys(targets, rule)}


SGLANG_FIRST = EngineProfile.stated(
    **facts(_read("0.5.2", "its name on PyPI"), engine="SGLang", package="sglang"),
    **_span("0.5.2", "0.5.3.post2", "0.5.3.post1"),
    # What the target hands over.
    **facts(
        _read("0.5.2", "srt/model_executor/model_runner.py"),
        capture_setting="--speculative-algorithm EAGLE3",
        capture_keys=(f"eagle_config.{CAPTURE_IDS_KEY}",),
    ),
    **facts(
        Source("SGLang PR #21272 (closed, not merged): accept len 1.00 with Kimi-K2.5", "2026-03-24"),
        without_capture="the draft gets the target's final state; fc is left out, the target's head takes the place of "
        "the draft's, and d2t is not used: accept len 1.00, no warning",
        fc_skipped_on_equal_width=True,
    ),
    **facts(
        _read("0.5.2", "srt/models: set_eagle3_layers_to_capture of each target"),
        id_rules=dict.fromkeys(_PLAIN_SHIFT, "plus_one"),
        last_point_targets=(),
        point_outside={"*": _NARROW},
    ),
    # How the draft is loaded.
    **facts(
        _read("0.5.2", "srt/models/llama_eagle3.py"),
        architectures={"gqa": ("LlamaForCausalLMEagle3",)},
        lm_head="the file's; the target's if draft_vocab_size is null (no such key is an AttributeError)",
        missing_lm_head="the head keeps what lay in memory, without a warning",
        missing_lm_head_is="random",
        honoured_keys={"gqa": ("bias", "head_dim", "target_hidden_size", "tie_word_embeddings")},
        ignored_keys={
            "gqa": (
                "attention_bias",
                "fc_norm",
                "logit_scale",
                "mlp_bias",
                "norm_before_fc",
                "norm_before_residual",
                "norm_output",
                "num_aux_hidden_states",
                "qkv_bias",
                "sliding_window",
                "use_aux_norm",
            )
        },
        unknown_tensors={"gqa": "dropped"},
        max_draft_layers={"gqa": 1},
    ),
    **facts(
        _read("0.5.2", "srt/models/llama.py: set_embed"),
        embedding="the target's, also when the file has one, unless target_hidden_size differs from hidden_size",
        embedding_of="target",
    ),
    short_rope=(
        "does not start (ValueError: the target's context is longer) unless "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1, which stretches the draft's range",
        _read("0.5.3", "srt/configs/model_config.py"),
    ),
    # The tree.
    trees=(True, _read("0.5.2", "srt/speculative/eagle_worker.py")),
    tree_kv=("slot", Source("SGLang PR #8409 (closed, not merged)", "2025-07-27")),
    **facts(
        _read("0.5.2", "srt/server_args.py"),
        default_trees={**dict.fromkeys(_DEEPSEEK_ARCHITECTURES, (3, 1, 4)), "*": (5, 4, 8)},
        forces_chain_width=True,
        flags={
            "algorithm": "--speculative-algorithm",
            "draft": "--speculative-draft-model-path",
            "num_steps": "--speculative-num-steps",
            "topk": "--speculative-eagle-topk",
            "num_draft_tokens": "--speculative-num-draft-tokens",
            "threshold_single": "--speculative-accept-threshold-single",
            "threshold_acc": "--speculative-accept-threshold-acc",
            "attention_backend": "--attention-backend",
            "page_size": "--page-size",
            "log_interval": "--decode-log-interval",
        },
    ),
    topk_refused_by=(
        ("trtllm_mha", "flashmla", "trtllm_mla"),
        _read("0.5.2", "srt/server_args.py and srt/layers/attention"),
    ),
    paged_topk_backends=(("flashinfer", "fa3"), _read("0.5.3", "srt/server_args.py; in 0.5.2 flashinfer alone")),
    # Verification.
    sampled_rule=(
        AcceptanceRule("target_only", inclusive=True),
        Source("SGLang issue #35771, which quotes the kernel as it was before PR #35798", "2026-08-21"),
    ),
    **facts(_read("0.5.2", "srt/server_args.py: no such flag"), sampled_options={}, sampled_needs=None),
    # What is printed.
    **facts(
        _read("0.5.2", "srt/managers/scheduler_metrics_mixin.py"),
        log_format="accept len: {accept_length:.2f}",
        accept_length=length_with_bonus,
        accept_rate=None,
        accept_rate_meaning=None,
        log_interval="40 decode iterations",
    ),
    cuts_last_round_in_log=(
        True,
        _read("0.5.3", "srt/speculative/eagle_info.py: verify cuts the accepted indices where a request ends"),
    ),
    **facts(
        _read("0.5.2", "srt/managers/tokenizer_manager.py"),
        cuts_last_round_in_request=True,
        prefill_in_request_length=True,
        request_fields={"rounds": "spec_verify_ct"},
    ),
    metrics=({"length": "sglang:spec_accept_length"}, _read("0.5.2", "srt/metrics/collector.py")),
    remarks=((_MLA_BACKEND,), _read("0.5.2", "srt/layers/attention/flashinfer_mla_backend.py")),
)

SGLANG_RATE = SGLANG_FIRST.changed(
    **_span("0.5.3.post2", "0.5.4.post2", "0.5.4.post1"),
    **facts(
        _pull(11572, "2025-10-13", "0.5.3.post2; the rate before it, which could exceed 1, was in no release"),
        log_format="accept len: {accept_length:.2f}, accept rate: {accept_rate:.2f}",
        accept_rate=length_per_level,
        accept_rate_meaning="accept len / (num_steps + 1)",
    ),
    request_fields=(
        {"rounds": "spec_verify_ct", "rate": "spec_accept_rate", "length": "spec_accept_length"},
        _read("0.5.3.post2", "srt/managers/tokenizer_manager.py"),
    ),
    metrics=(
        {"length": "sglang:spec_accept_length", "rate": "sglang:spec_accept_rate"},
        _read("0.5.3.post2", "srt/metrics/collector.py"),
    ),
)

SGLANG_DEEPSEEK = SGLANG_RATE.changed(
    **_span("0.5.4.post2", "0.5.5.post3", "0.5.5.post2"),
    **facts(
        _read("0.5.4.post2", "srt/models: DeepSeek; GLM-4 MoE in 0.5.5, MiniMax-M2 in 0.5.5.post2"),
        id_rules=with_targets(
            SGLANG_RATE.id_rules, (*DEEPSEEK_TARGETS, "apertus", "glm4_moe", "minimax_m2"), "plus_one"
        ),
        point_outside={"*": _NARROW, "qwen2_moe": _INDEX_ERROR, "qwen3_moe": _INDEX_ERROR},
    ),
)

SGLANG_RATE_BY_NODE = SGLANG_DEEPSEEK.changed(
    **_span("0.5.5.post3", "0.5.8", "0.5.7"),
    **facts(
        _pull(13212, "2025-11-13", "0.5.5.post3"),
        accept_rate=length_per_node,
        accept_rate_meaning="accept len / num_draft_tokens",
        request_fields={
            **SGLANG_RATE.request_fields,
            "accepted_drafts": "spec_accept_token_num",
            "proposed_drafts": "spec_draft_token_num",
        },
    ),
    id_rules=(
        with_targets(SGLANG_DEEPSEEK.id_rules, ("longcat_flash",), "plus_one"),
        _read("0.5.5.post3", "srt/models; LongCat in 0.5.6"),
    ),
)

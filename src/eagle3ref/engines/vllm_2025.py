"""vLLM (engine V1) from 0.8.5 to 0.17.1 (April 2025 to March 2026), release by release."""

from __future__ import annotations

from eagle3ref.config import AcceptanceRule
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.engines.formulas import drafts_per_draft_node, length_with_bonus, length_without_bonus
from eagle3ref.engines.profile import EngineProfile, Source, facts
from eagle3ref.engines.sources import Releases

VLLM_RELEASES = Releases(
    "vLLM",
    {
        "0.8.5": "2025-04-28",
        "0.9.0": "2025-05-28",
        "0.10.1": "2025-08-19",
        "0.10.2": "2025-09-13",
        "0.11.1": "2025-11-19",
        "0.12.0": "2025-12-03",
        "0.16.0": "2026-02-26",
        "0.18.0": "2026-03-20",
        "0.21.0": "2026-05-15",
        "0.22.0": "2026-05-29",
        "0.27.0": "2026-08-10",
        "0.29.0": "2026-09-09",
        "0.32.0": "2026-10-18",
    },
)
_read, _pull, _span = VLLM_RELEASES.read, VLLM_RELEASES.pull, VLLM_RELEASES.span
LLAMA_DRAFTS = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_NONE = "vLLM has no such thing"

VLLM_FIRST = EngineProfile.stated(
    **facts(_read("0.8.5", "its name on PyPI; EAGLE-3 came with PR #16937"), engine="vLLM", package="vllm"),
    **_span("0.8.5", "0.9.0", "0.8.5"),
    # What the target hands over.
    **facts(
        _read("0.8.5", "config.py and v1/worker/gpu_model_runner.py"),
        capture_setting='--speculative-config {"method": "eagle3"}',
        capture_keys=(),
    ),
    without_capture=(None, Source("not established for vLLM", "2026-11-29")),
    **facts(
        _read("0.8.5", "model_executor/models/llama.py"),
        id_rules={"llama": "as_is"},
        last_point_targets=(),
        point_outside={"*": "fc gets fewer states than it takes and fails on the width while the server starts"},
    ),
    # How the draft is loaded.
    **facts(
        _read("0.8.5", "model_executor/models/llama_eagle3.py"),
        architectures={"gqa": LLAMA_DRAFTS},
        honoured_keys={"gqa": ("head_dim", "logit_scale", "target_hidden_size")},
        ignored_keys={
            "gqa": (
                *("attention_bias", "bias", "fc_norm", "norm_before_fc", "norm_before_residual", "norm_output"),
                *("num_aux_hidden_states", "tie_word_embeddings", "use_aux_norm"),
            )
        },
        unknown_tensors={"gqa": "refused"},
        max_draft_layers={"gqa": 1},
        fc_skipped_on_equal_width=False,
    ),
    **facts(
        _read("0.32.0", "v1/worker/gpu/spec_decode/eagle/utils.py; older releases were not read for it"),
        embedding="the file's if it has one, else the target's",
        embedding_of="draft",
        lm_head="the file's if it has one, else the target's",
        missing_lm_head="the target's head takes its place; with a smaller draft_vocab_size the widths then differ",
        missing_lm_head_is="target",
    ),
    short_rope=(
        "not stopped: positions past the draft's range are looked up outside its table (issue #48894)",
        _read("0.27.0", "config/speculative.py, which ended it"),
    ),
    # The tree: a chain, always.
    **facts(
        Source(f"{_NONE}: num_speculative_tokens k is a chain, S = k and N = k + 1", "2025-04-28"),
        trees=False,
        tree_kv=None,
        default_trees={},
        forces_chain_width=True,
        topk_refused_by=(),
        paged_topk_backends=None,
    ),
    # Verification.
    **facts(
        _read("0.8.5", "v1/sample/rejection_sampler.py, called without draft probabilities"),
        sampled_rule=AcceptanceRule("rejection"),
        sampled_options={},
        sampled_needs=None,
    ),
    # What is printed.
    **facts(
        _read("0.8.5", "v1/spec_decode/metrics.py"),
        log_format="Draft acceptance rate: {accept_rate:.1%}, Mean acceptance length: {accept_length:.2f}",
        accept_length=length_without_bonus,
        accept_rate=drafts_per_draft_node,
        accept_rate_meaning="accepted drafts / drafted tokens",
        log_interval="10 seconds",
        metrics={
            "rounds": "vllm:spec_decode_num_drafts_total",
            "proposed_drafts": "vllm:spec_decode_num_draft_tokens_total",
            "accepted_drafts": "vllm:spec_decode_num_accepted_tokens_total",
            "accepted_at": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        },
    ),
    cuts_last_round_in_log=(False, _read("0.32.0", "v1/core/sched/scheduler.py counts before it looks for the end")),
    **facts(
        Source(f"{_NONE} per request", "2025-04-28"),
        cuts_last_round_in_request=None,
        prefill_in_request_length=None,
        request_fields={},
    ),
    flags=(
        {
            "config": "--speculative-config",
            "num_steps": "num_speculative_tokens",
            "algorithm": "method",
            "draft": "model",
        },
        _read("0.8.5", "config.py"),
    ),
    remarks=((), _read("0.8.5", "nothing to add")),
)

VLLM_WITH_BONUS = VLLM_FIRST.changed(
    **_span("0.9.0", "0.10.1", "0.10.0"),
    accept_length=(length_with_bonus, _pull(17908, "2025-05-09", "0.9.0")),
)

VLLM_RESIDUAL = VLLM_WITH_BONUS.changed(
    **_span("0.10.1", "0.11.1", "0.11.0"),
    **facts(
        _read("0.10.1", "model_executor/models/llama_eagle3.py"),
        honoured_keys={"gqa": (*VLLM_FIRST.honoured_keys["gqa"], "norm_before_residual")},
        ignored_keys={"gqa": tuple(key for key in VLLM_FIRST.ignored_keys["gqa"] if key != "norm_before_residual")},
        remarks=("A file in the speculators layout without norm_before_residual is read as true.",),
    ),
    id_rules=(
        dict.fromkeys(("llama", "qwen2", "qwen3", "gpt_oss", "minicpm"), "as_is"),
        _read("0.10.1", "model_executor/models; qwen2 in 0.10.2, gpt_oss and minicpm in 0.11.0"),
    ),
    log_format=(
        "Mean acceptance length: {accept_length:.2f}, Avg Draft acceptance rate: {accept_rate:.1%}",
        _read("0.10.2", "v1/spec_decode/metrics.py; 0.10.1 still had the older order of words"),
    ),
)

VLLM_TOP_LEVEL_IDS = VLLM_RESIDUAL.changed(
    **_span("0.11.1", "0.18.0", "0.17.1"),
    **facts(
        _pull(25961, "2025-10-01", "0.11.1"),
        capture_keys=(CAPTURE_IDS_KEY,),
        id_rules={
            **VLLM_RESIDUAL.id_rules,
            **dict.fromkeys(("llama4", "qwen2_5_vl", "qwen3_moe", "qwen3_vl", "mistral3"), "as_is"),
        },
    ),
    max_draft_layers=({"gqa": None}, _read("0.11.1", "model_executor/models/llama_eagle3.py")),
    short_rope=(
        "a request longer than the draft's range gets no drafts, nor does the batch it is in (issue #58080)",
        _read("0.12.0", "v1/worker/gpu_model_runner.py"),
    ),
)

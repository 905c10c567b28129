"""SafeAILab/EAGLE, the authors' own EAGLE-3 code (arXiv 2503.01840)."""

from __future__ import annotations

from eagle3ref.config import AcceptanceRule
from eagle3ref.engines.profile import EngineProfile, Source, facts
from eagle3ref.engines.sources import no_figures

_CODE = Source("SafeAILab/EAGLE commit cb7e084, eagle/model", "2026-02")
_NO_SERVER = Source("SafeAILab/EAGLE commit cb7e084: a library, not a server", "2026-02")

SAFEAILAB = EngineProfile.stated(
    **facts(_CODE, engine="SafeAILab", package="safeailab", versions="", version="cb7e084", since="2025-03-03"),
    # What the target hands over: always the same three.
    **facts(
        _CODE,
        capture_setting="use_eagle3=True",
        without_capture=None,
        capture_keys=(),
        id_rules=dict.fromkeys(("llama", "qwen2", "qwen3", "mixtral"), "as_is"),
        last_point_targets=(),
        point_outside={"*": "no ids are read"},
    ),
    # How the draft is loaded.
    **facts(
        _CODE,
        architectures={"gqa": ("LlamaForCausalLM",)},
        embedding="the target's, also when the file has one, unless there is a target_hidden_size",
        embedding_of="target",
        lm_head="the file's",
        missing_lm_head=None,
        missing_lm_head_is=None,
        honoured_keys={"gqa": ("qkv_bias", "target_hidden_size")},
        ignored_keys={
            "gqa": (
                *("attention_bias", "bias", "fc_norm", "head_dim", "logit_scale", "norm_before_fc"),
                *("norm_before_residual", "norm_output", "num_aux_hidden_states", "tie_word_embeddings"),
            )
        },
        unknown_tensors={},
        max_draft_layers={"gqa": 1},
        fc_skipped_on_equal_width=True,
        short_rope=None,
    ),
    # The tree. Its depth 7 is S = 8, its total_token is N.
    **facts(
        _CODE,
        trees=True,
        tree_kv="ancestor",
        default_trees={"*": (8, 10, 60)},
        forces_chain_width=False,
        topk_refused_by=(),
        paged_topk_backends=None,
    ),
    # Verification.
    **facts(_CODE, sampled_rule=AcceptanceRule("multi_round"), sampled_options={}, sampled_needs=None),
    # What is printed: nothing; the evaluation scripts write the lengths to a file.
    **no_figures(_NO_SERVER),
    **facts(
        _NO_SERVER,
        flags={"num_steps": "depth + 1", "topk": "top_k", "num_draft_tokens": "total_token"},
        remarks=("The rope base is 10000 in its linear and dynamic classes, whatever rope_theta says.",),
    ),
)

"""The server flags that change what a draft does, as each engine spells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from eagle3ref.explain.backend_names import SGLANG_BACKENDS, VLLM_BACKENDS

Kind = Literal["text", "count", "length", "number", "switch"]


@dataclass(frozen=True)
class FlagName:
    """One setting of ``ServerFlags`` and how an engine spells it.

    Args:
        setting: the field of ``ServerFlags``.
        kind: what its value is; a ``switch`` needs none, and a ``length`` may be 128k, 128K or auto.
        spellings: on the command line, the usual one first.
    """

    setting: str
    kind: Kind
    spellings: tuple[str, ...]


@dataclass(frozen=True)
class Dialect:
    """How the command line of one engine reads.

    Args:
        flags: that change what a draft does.
        others: flags that change nothing here; of the family ``--speculative-...`` all that there are.
        json_flags: flags whose value is a JSON object with the keys of ``json_keys``.
        json_keys: key of that object -> spelling of the flag that says the same.
        json_others: the other keys of that object; the engine refuses one that is in neither.
        backends: the attention backends that the engine has, in lower case.
        underscores: ``--a_b`` is read as ``--a-b``.
    """

    flags: tuple[FlagName, ...]
    others: tuple[str, ...] = ()
    json_flags: tuple[str, ...] = ()
    json_keys: Mapping[str, str] = field(default_factory=dict)
    json_others: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    underscores: bool = False

    def spelled(self, name: str) -> FlagName | None:
        """The flag of exactly this spelling."""
        return next((flag for flag in self.flags if name in flag.spellings), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Every spelling that the engine's parser knows, as far as it matters here."""
        own = tuple(name for flag in self.flags for name in flag.spellings)
        return own + self.others + self.json_flags


def _flag(setting: str, kind: Kind, *spellings: str) -> FlagName:
    return FlagName(setting, kind, spellings)


_OF_BOTH = (
    "--host",
    "--port",
    "--dtype",
    "--kv-cache-dtype",
    "--load-format",
    "--served-model-name",
    "--tensor-parallel-size",
    "--trust-remote-code",
)

# SGLang 0.5.23, srt/arg_groups/fields/*.py and choices.py; earlier releases have a subset of these names.
SGLANG = Dialect(
    flags=(
        _flag("algorithm", "text", "--speculative-algorithm"),
        _flag("draft_path", "text", "--speculative-draft-model-path", "--speculative-draft-model"),
        _flag("target_path", "text", "--model-path", "--model"),
        _flag("num_steps", "count", "--speculative-num-steps"),
        _flag("topk", "count", "--speculative-eagle-topk"),
        _flag("num_draft_tokens", "count", "--speculative-num-draft-tokens"),
        _flag("threshold_single", "number", "--speculative-accept-threshold-single"),
        _flag("threshold_acc", "number", "--speculative-accept-threshold-acc"),
        _flag("rejection_sampling", "switch", "--speculative-use-rejection-sampling"),
        _flag("block_verification", "switch", "--speculative-use-block-verification"),
        _flag("token_map", "text", "--speculative-token-map"),
        _flag("draft_attention_backend", "text", "--speculative-draft-attention-backend"),
        _flag("draft_window", "count", "--speculative-draft-window-size"),
        _flag("draft_quantization", "text", "--speculative-draft-model-quantization"),
        _flag("adaptive", "switch", "--speculative-adaptive"),
        _flag("attention_backend", "text", "--attention-backend"),
        _flag("decode_attention_backend", "text", "--decode-attention-backend"),
        _flag("page_size", "count", "--page-size"),
        _flag("context_length", "count", "--context-length"),
        _flag("quantization", "text", "--quantization"),
        _flag("deterministic", "switch", "--enable-deterministic-inference"),
    ),
    others=(
        "--speculative-draft-model-revision",
        "--speculative-draft-load-format",
        "--speculative-draft-kv-cache-dtype",
        "--speculative-draft-sink-size",
        "--speculative-attention-mode",
        "--speculative-moe-runner-backend",
        "--speculative-moe-a2a-backend",
        "--speculative-adaptive-config",
        "--speculative-dsa-topk-backend",
        "--speculative-enable-w4a4-mxfp4-megamoe",
        "--speculative-domino-candidate-pool-size",
        "--speculative-dflash-block-size",
        "--speculative-dspark-block-size",
        "--speculative-dspark-sps-table-path",
        "--speculative-dspark-confidence-sts-path",
        "--speculative-dspark-align-verify-tokens-to-graph-tier",
        "--speculative-ngram-min-bfs-breadth",
        "--speculative-ngram-max-bfs-breadth",
        "--speculative-ngram-match-type",
        "--speculative-ngram-max-trie-depth",
        "--speculative-ngram-capacity",
        "--speculative-ngram-external-corpus-path",
        "--speculative-ngram-external-sam-budget",
        "--speculative-ngram-external-corpus-max-tokens",
        "--prefill-attention-backend",
        "--mm-attention-backend",
        *_OF_BOTH,
        "--tp",
        "--tp-size",
        "--dp-size",
        "--mem-fraction-static",
        "--max-running-requests",
        "--chunked-prefill-size",
        "--disable-radix-cache",
        "--disable-cuda-graph",
    ),
    backends=SGLANG_BACKENDS,
)

# vLLM 0.32.0, config/speculative.py, engine/arg_utils.py and v1/attention/backends/registry.py.
VLLM = Dialect(
    flags=(
        _flag("algorithm", "text", "--spec-method"),
        _flag("draft_path", "text", "--spec-model"),
        _flag("target_path", "text", "--model"),
        _flag("num_steps", "count", "--spec-tokens"),
        _flag("attention_backend", "text", "--attention-backend"),
        _flag("context_length", "length", "--max-model-len"),
        _flag("quantization", "text", "--quantization", "-q"),
        # Keys of the JSON object that have no flag of their own.
        _flag("draft_attention_backend", "text", "speculative_config.attention_backend"),
        _flag("draft_quantization", "text", "speculative_config.quantization"),
        _flag("draft_context_length", "length", "speculative_config.max_model_len"),
        _flag("draft_sample_method", "text", "speculative_config.draft_sample_method"),
        _flag("rejection_sample_method", "text", "speculative_config.rejection_sample_method"),
        _flag("parallel_drafting", "switch", "speculative_config.parallel_drafting"),
    ),
    others=(
        *_OF_BOTH,
        "--specialize-active-lora",
        "--data-parallel-size",
        "--gpu-memory-utilization",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--enforce-eager",
    ),
    json_flags=("--speculative-config", "-sc"),
    json_keys={
        "method": "--spec-method",
        "model": "--spec-model",
        "num_speculative_tokens": "--spec-tokens",
        "attention_backend": "speculative_config.attention_backend",
        "quantization": "speculative_config.quantization",
        "max_model_len": "speculative_config.max_model_len",
        "draft_sample_method": "speculative_config.draft_sample_method",
        "rejection_sample_method": "speculative_config.rejection_sample_method",
        "parallel_drafting": "speculative_config.parallel_drafting",
    },
    json_others=(
        "code_revision",
        "disable_eagle_block_drop",
        "disable_padded_drafter_batch",
        "draft_load_config",
        "draft_tensor_parallel_size",
        "dspark_draft_topk",
        "enable_adaptive_verification",
        "enforce_eager",
        "index_share_for_mtp_iteration",
        "kv_cache_dtype",
        "moe_backend",
        "num_speculative_tokens_per_batch_size",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "revision",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_min_token_prob",
        "synthetic_acceptance_length",
        "synthetic_acceptance_rates",
        "use_heterogeneous_vocab",
        "use_local_argmax_reduction",
    ),
    backends=VLLM_BACKENDS,
    underscores=True,
)

DIALECTS: Mapping[str, Dialect] = {"SGLang": SGLANG, "vLLM": VLLM}

"""What a running server says of itself: its model, its draft, its tree, and settings that move acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle3ref.config import TreeConfig

ServerEngine = Literal["sglang", "vllm", "openai"]
Endpoint = Literal["/generate", "/v1/completions"]


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What a server states; None where it does not.

    Args:
        engine: ``"openai"`` for a server of another make that has OpenAI's endpoints.
        endpoint: where prompts go: SGLang's own, or OpenAI's where only that one is let through.
        version: of the engine.
        model: path of the target, as the server knows it.
        served_model_name: name that requests give.
        draft: path of the draft.
        algorithm: SGLang's ``speculative_algorithm``, or vLLM's ``method``.
        num_steps: depth of the tree.
        topk: children kept per beam.
        num_draft_tokens: nodes verified per round, the root counted.
        attention_backend: of the target.
        draft_attention_backend: of the draft, where it has its own.
        page_size: of the KV cache, in tokens.
        dtype: of weights and activations.
        kv_cache_dtype: of the KV cache.
        quantization: of the target's weights.
        radix_cache: whether prefixes are cached.
        cuda_graph: whether decode steps run as graphs.
        overlap: whether the scheduler runs ahead of the device.
        tp: ranks of tensor parallelism.
        dp: ranks of data parallelism.
        dp_attention: whether attention is data parallel inside one model.
        disaggregation: ``"null"`` where prefill and decode share a server.
        accept_threshold_single: SGLang's; 1 is off.
        accept_threshold_acc: likewise.
        rejection_sampling: whether a setting puts it in place of target-only sampling.
        block_verification: likewise.
        adaptive: whether the number of steps changes while the server runs.
        flags: the settings that change what a draft does, as launch flags; ``load_draft_as`` takes them.
        raw: all of it, by the names that the server gives. Keys and passwords are not in it.
    """

    engine: ServerEngine
    endpoint: Endpoint = "/v1/completions"
    version: str | None = None
    model: str | None = None
    served_model_name: str | None = None
    draft: str | None = None
    algorithm: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    attention_backend: str | None = None
    draft_attention_backend: str | None = None
    page_size: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    radix_cache: bool | None = None
    cuda_graph: bool | None = None
    overlap: bool | None = None
    tp: int | None = None
    dp: int | None = None
    dp_attention: bool | None = None
    disaggregation: str | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None
    rejection_sampling: bool | None = None
    block_verification: bool | None = None
    adaptive: bool | None = None
    flags: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def engine_name(self) -> str | None:
        """As ``engine_profile`` takes it, e.g. ``"sglang==0.5.23"``; None for a server of another make."""
        if self.engine == "openai":
            return None
        return f"{self.engine}=={self.version}" if self.version else self.engine

    @property
    def tree(self) -> TreeConfig | None:
        """The tree that the server states; None if it states none.

        Raises:
            Eagle3RefError: counts that do not go together.
        """
        if self.num_steps is None or self.topk is None or self.num_draft_tokens is None:
            return None
        return TreeConfig(self.num_steps, self.topk, self.num_draft_tokens)

    def __str__(self) -> str:
        name = {"sglang": "SGLang", "vllm": "vLLM", "openai": "OpenAI-compatible server"}[self.engine]
        parts = [f"{name} {self.version or ''}".rstrip(), f"target {self.model or self.served_model_name}"]
        if self.algorithm or self.draft:
            parts.append(f"{self.algorithm or 'speculation'} with draft {self.draft}")
        if self.num_steps is not None:
            parts.append(f"num_steps/topk/num_draft_tokens {self.num_steps}/{self.topk}/{self.num_draft_tokens}")
        return ", ".join(parts)

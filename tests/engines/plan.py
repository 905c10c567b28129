"""The runs: what is asked of which engine. The golden file of a run has its engine and name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Engine = Literal["sglang", "vllm"]
Pair = Literal["llama", "kimi"]
ENGINES: tuple[Engine, ...] = ("sglang", "vllm")

POINTS = (2, 4, 5)  # the streams that the drafts of both pairs were trained on
OUTPUT_IDS = (1, 3, 4)  # the same as their config.json has them: outputs of layers, to which SGLang adds 1
ALL_PROMPTS = 32


@dataclass(frozen=True)
class Run:
    """One start of an engine.

    Args:
        engine: which.
        name: of the run, unique for its engine.
        num_steps: depth of the draft; vLLM's ``num_speculative_tokens``.
        topk: branches; vLLM drafts chains only.
        num_draft_tokens: nodes of the tree, its root counted.
        ids: what the draft's config.json says the capture ids are.
        pair: the Llama-style one, or the embedded Kimi-shaped one (``kimi.py``).
        variant: an edit of the draft (``drafts.py``); none when empty.
        num_prompts: how many of the prompts, from the first.
        max_new_tokens: of each answer.
        temperature: 0 is greedy.
        top_p: 1 keeps all.
        top_k: -1 keeps all.
        stop_token: ends an answer; none when None (the target writes no end token of its own).
        concurrency: requests in flight at a time.
        target_only: of SGLang: above temperature 0, verify as on a GPU; on a CPU it is greedy whatever is asked.
        attention: of SGLang: ``intel_amx``, whose operators ``sglang_cpu`` restates, or its own ``triton`` kernels,
            interpreted, at seconds a round.
    """

    engine: Engine
    name: str
    num_steps: int
    topk: int
    num_draft_tokens: int
    ids: tuple[int, ...]
    pair: Pair = "llama"
    variant: str = ""
    num_prompts: int = ALL_PROMPTS
    max_new_tokens: int = 48
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token: int | None = None
    concurrency: int = 1
    target_only: bool = False
    attention: str = "intel_amx"

    def __str__(self) -> str:
        return f"{self.engine}/{self.name}"


VARIANTS = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "fc_bias",
    "attention_bias",
    "own_embedding",
    "target_head",
    "flat_ids",
)
# Which changes to a draft an engine honours; the others it ignores without a word, and runs the draft without them.
HONOURED: dict[Engine, set[str]] = {
    "sglang": {"norm_before_fc", "fc_norm", "norm_output", "fc_bias", "target_head"},
    "vllm": set(VARIANTS) - {"fc_bias"},
}
KIMI_ON_SGLANG = {"pair": "kimi", "attention": "triton"}  # latent attention is not among the operators restated


def _sglang(
    num_steps: int, topk: int, num_draft_tokens: int, suffix: str = "", ids: tuple[int, ...] = OUTPUT_IDS, **rest: Any
) -> Run:
    return Run(
        "sglang", f"{num_steps}-{topk}-{num_draft_tokens}{suffix}", num_steps, topk, num_draft_tokens, ids, **rest
    )


def _vllm(num_steps: int, suffix: str = "", ids: tuple[int, ...] = POINTS, **rest: Any) -> Run:
    return Run("vllm", f"k{num_steps}{suffix}", num_steps, 1, num_steps + 1, ids, **rest)


RUNS: tuple[Run, ...] = (
    _sglang(3, 1, 4),
    _sglang(5, 1, 6),
    _sglang(3, 2, 6, max_new_tokens=24),
    _sglang(4, 4, 8, max_new_tokens=24),
    _sglang(5, 4, 16, max_new_tokens=24),
    _sglang(4, 4, 8, "-batched", max_new_tokens=24, concurrency=4),
    _sglang(3, 1, 4, "-until-stop", stop_token=43),
    _sglang(3, 1, 4, "-temperature", num_prompts=4, temperature=0.8),
    _sglang(3, 1, 4, "-target-only", max_new_tokens=24, temperature=0.8, target_only=True),
    _sglang(4, 4, 8, "-target-only", max_new_tokens=24, temperature=0.8, target_only=True),
    _sglang(5, 4, 16, "-triton", num_prompts=5, max_new_tokens=24, attention="triton"),
    _sglang(3, 1, 4, "-kimi", **KIMI_ON_SGLANG, num_prompts=3, max_new_tokens=32),
    _sglang(4, 4, 8, "-kimi", **KIMI_ON_SGLANG, num_prompts=2, max_new_tokens=24),
    _sglang(3, 1, 4, "-kimi-input-ids", POINTS, **KIMI_ON_SGLANG, num_prompts=1, max_new_tokens=24),
    *(_sglang(3, 1, 4, f"-{variant}", variant=variant, num_prompts=5) for variant in VARIANTS),
    _vllm(1),
    _vllm(3),
    _vllm(5),
    _vllm(3, "-output-ids", OUTPUT_IDS),
    _vllm(3, "-batched", concurrency=4),
    _vllm(3, "-until-stop", stop_token=43),
    _vllm(3, "-temperature", temperature=0.8),
    _vllm(5, "-temperature-top-p-top-k", temperature=1.0, top_p=0.9, top_k=20),
    _vllm(3, "-kimi", pair="kimi", num_prompts=8, max_new_tokens=32),
    *(_vllm(3, f"-{variant}", variant=variant, num_prompts=5) for variant in VARIANTS),
)

"""Causes that no wiring imitates: state of a running server. Each has signs, and an experiment that decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# What may be seen, measured in the evidence or told by the user.
SYMPTOMS: Mapping[str, str] = {
    "decays": "acceptance falls over hours",
    "cured-by-restart": "a restart, or a flush of the cache, brings it back",
    "cured-without-cache": "it is normal with the prefix cache off",
    "cached-prompts": "it is low where prompt tokens came from the prefix cache",
    "long-prompts": "it falls with the length of the prompt",
    "batched": "it falls with the number of running requests",
    "one-long-request": "all requests drop when a long one arrives",
    "disaggregated": "it is low only with prefill and decode on different servers",
    "dp-attention": "it is low only with DP attention",
    "graphs": "it is low only with CUDA graphs",
    "sampling": "it is low only at temperature > 0",
    "more-nodes": "more draft tokens a round give fewer accepted ones",
    "dead": "no draft is accepted at all",
    "all-or-nothing": "rounds accept every draft or none",
    "later-positions": "the first draft of a round is as it should be, the later ones collapse",
    "broken-text": "the text itself gets worse",
    "above": "acceptance is higher than the reference",
    "constant-ratio": "two engines or tools differ by one factor everywhere",
}


@dataclass(frozen=True)
class RuntimeCause:
    """One state of a server that costs acceptance.

    Args:
        name: short, unique.
        what: what happens, one sentence.
        signs: the symptoms that point at it, the most telling first.
        experiment: one run that is on, one that is off, and which answer decides.
        fix: what to do then.
        reports: public reports of it.
    """

    name: str
    what: str
    signs: tuple[str, ...]
    experiment: str
    fix: str
    reports: str


RUNTIME_CAUSES = (
    RuntimeCause(
        "cached-prefix-without-draft-rows",
        "The prefix cache gives back prompt tokens whose draft rows were never written, or were overwritten.",
        ("cured-without-cache", "cached-prompts", "decays", "cured-by-restart"),
        "Serve the same prompts once with the prefix cache off (SGLang --disable-radix-cache, vLLM "
        "--no-enable-prefix-caching): if acceptance comes back, and a flush (SGLang POST /flush_cache) brings it back "
        "for a while, it is this.",
        "Update the engine, and keep the prefix cache off until then.",
        "SGLang #32176, #28771; vLLM #41838",
    ),
    RuntimeCause(
        "draft-rows-keyed-without-next-token",
        "A draft row needs the token after it, and the cache hands out the last row of a prefix whatever comes next.",
        ("cured-without-cache", "cached-prompts"),
        "Serve the same prompts with the prefix cache on and off: a small, constant loss (about 5 %) that is gone "
        "without it is this.",
        "Update the engine.",
        "SGLang PR 10846, PR 11215",
    ),
    RuntimeCause(
        "draft-cache-in-transfer",
        "The draft's cache is sent from prefill to decode in the target's format, or not at all.",
        ("disaggregated",),
        "Serve prefill and decode on one server: if acceptance comes back, it is this.",
        "Update the engine, or serve them together.",
        "SGLang PR 13555 (2.8 fell to 2.1)",
    ),
    RuntimeCause(
        "dp-attention-extend",
        "With DP attention the draft's extend sees a part of the tokens only.",
        ("dp-attention", "batched"),
        "Serve once without --enable-dp-attention: if acceptance comes back, it is this.",
        "Update the engine, or leave DP attention off.",
        "SGLang #16274 (37 % lower)",
    ),
    RuntimeCause(
        "length-gate",
        "One request longer than the draft's range turns drafting off, or to dummy tokens, for the whole batch.",
        ("one-long-request", "long-prompts"),
        "Send one long prompt into a batch of short ones, and then none: if all drop together, it is this.",
        "Limit the context to the draft's range, or send long prompts to another server.",
        "vLLM #58080",
    ),
    RuntimeCause(
        "draft-range",
        "The draft was trained on shorter texts, or its rope does not reach as far.",
        ("long-prompts",),
        "Record a trace of long prompts and replay it: if the reference falls in the same way, it is the draft.",
        "Train on longer texts, or keep the target's rope scaling in the draft's config.json.",
        "speculators PR 684, SpecForge PR 271, NeMo PR 2399",
    ),
    RuntimeCause(
        "batch-index",
        "States of a batch are gathered by a wrong index, or padded rows are taken for real ones.",
        ("batched",),
        "Serve the same prompts one at a time (--max-running-requests 1, or --concurrency 1 of the client), then "
        "together: if only the batch is low, it is this.",
        "Update the engine.",
        "TensorRT-LLM PR 4168, #9208",
    ),
    RuntimeCause(
        "stale-graph",
        "A captured graph reads inputs of the capture, not of the step.",
        ("graphs", "dead"),
        "Serve once with graphs off (SGLang --disable-cuda-graph, vLLM --enforce-eager): if acceptance comes back, it "
        "is this.",
        "Update the engine, or leave graphs off for the draft.",
        "vllm-ascend #8721, vLLM PR 17504",
    ),
    RuntimeCause(
        "broken-logits",
        "An attention kernel gives NaN: every comparison then comes out one way.",
        ("all-or-nothing", "dead"),
        "Serve once with another attention backend: if the histogram gets its middle back, it is this.",
        "Choose another attention backend.",
        "TensorRT-LLM PR 5146",
    ),
    RuntimeCause(
        "draft-loop-state",
        "Positions, slots or rows of the draft loop are not advanced from pass to pass.",
        ("later-positions",),
        "Serve once with one draft token a round (SGLang --speculative-num-steps 1, vLLM num_speculative_tokens 1): if "
        "that one is as it should be, the loop is at fault.",
        "Update the engine, or choose another attention backend for the draft.",
        "vLLM #33330, vllm-ascend PR 10023",
    ),
    RuntimeCause(
        "acceptance-rule",
        "Above temperature 0 the engine keeps drafts by another rule than you think.",
        ("sampling",),
        "Serve the same prompts at temperature 0: if that agrees with the reference, replay the sampled trace with "
        "--rule of the engine (docs/rules.md).",
        "Name the rule that the engine runs, or set the one that you want.",
        "vLLM #40551, PR 35461",
    ),
    RuntimeCause(
        "tree-rows",
        "Branches of a tree read rows of other branches, or rejected ones stay.",
        ("more-nodes",),
        "Serve once with topk 1: if the chain agrees with the reference and the tree does not, it is this.",
        "Serve a chain, or replay with --tree-kv as the engine has it.",
        "TensorRT-LLM #10343, SGLang PR 8409, SafeAILab #336",
    ),
    RuntimeCause(
        "target-or-verification",
        "The target's own states are corrupt, or verification is: a wrong draft alone never changes the text.",
        ("broken-text", "decays"),
        "Serve the same prompts at temperature 0 without speculation: if the text is still wrong, it is the target; if "
        "not, the verification.",
        "Mend the text first; acceptance follows.",
        "vLLM #36872",
    ),
    RuntimeCause(
        "easy-text",
        "The server's text is easier to draft than the trace's: loops, repeated prompts, another chat template.",
        ("above",),
        "Look at the answers, and replay the server's own ones: eagle3ref crosscheck with request fields and ids.",
        "Measure on the prompts and the template that you serve.",
        "tokenspeed #1305 (3.93 against 1.94)",
    ),
    RuntimeCause(
        "definition",
        "The two numbers count different things: bonus token, root, mean over rounds or over requests.",
        ("constant-ratio", "above"),
        "Run eagle3ref read on both: it says of every figure what is divided by what.",
        "Compare integers, or one definition.",
        "vLLM PR 16035, PR 17908, #42508",
    ),
)


def point_at(signs: Collection[str]) -> tuple[RuntimeCause, ...]:
    """The causes that these symptoms point at: those that explain most of them, then those whose own first sign it is.

    What is left equal stays in the order of the catalogue, which is that of how often they are reported.
    """
    explained = {cause: len(set(cause.signs) & set(signs)) for cause in RUNTIME_CAUSES}
    pointed = [cause for cause in RUNTIME_CAUSES if explained[cause]]
    return tuple(sorted(pointed, key=lambda cause: (-explained[cause], cause.signs[0] not in signs)))

"""Faults of the committed draft rows: prefix caches, prefill chunks, windows."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.hypothesis import Cause, Hypothesis, LeftOut
from eagle3ref.diagnose.wiring import Wiring

_WINDOWS = (4096, 2048)
_SHORT_WINDOWS = (1024, 512)  # looked at where no sequence is longer than the usual limits
_CHUNKS = (8192, 2048)  # chunked-prefill-size of SGLang and max-num-batched-tokens of vLLM
_CACHE_FIX = "Measure once with --disable-radix-cache (SGLang) or --no-enable-prefix-caching (vLLM); update the engine."
_CHUNK_FIX = "Measure once with a chunk longer than the prompts (--chunked-prefill-size); update the engine."


def row_faults(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    """All of them."""
    yield from _cached()
    yield from _last_row()
    yield from _chunked(bench)
    yield from _windows(bench)


def _cached() -> Iterator[Hypothesis]:
    for name, share, part in (("all", 1.0, "the whole prompt"), ("half", 0.5, "the first half of the prompt")):
        does = f"Tokens from the prefix cache have no draft rows: {part} but its last token is not seen."
        looks = "below from the second request with a common prefix on; right after a flush"
        yield Hypothesis(
            f"cached-{name}-rows-missing", "prefix_cache", does, _CACHE_FIX, looks, Wiring(cached_share=share)
        )


def _last_row() -> Iterator[Hypothesis]:
    looks = "a few per cent below, only with the cache on"
    does = "The last row of the prompt takes the prompt's last token again instead of the first generated one."
    wiring = Wiring(wrong_token="prompt end: own")
    yield Hypothesis("last-row-own-token", "prefix_cache", does, _CACHE_FIX, looks, wiring)
    does = "The last row of the prompt takes token id 0, a slot that was never filled."
    wiring = Wiring(wrong_token="prompt end: zero")
    yield Hypothesis("last-row-zero-token", "prefix_cache", does, _CACHE_FIX, looks, wiring)


def _chunked(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    cause: Cause = "chunked_prefill"
    chunks = [chunk for chunk in _CHUNKS if chunk < bench.longest_prompt]
    if not chunks:
        reason = f"No prompt of the trace is longer than a chunk of {_CHUNKS[-1]} tokens."
        yield LeftOut("chunk-tail-own-token", cause, reason)
        yield LeftOut("chunk-tail-first-choice", cause, reason)
    looks = "slightly below, only with prompts longer than a chunk"
    for chunk in chunks:
        does = f"The last row of each chunk of {chunk} prompt tokens takes its own token again."
        wiring = Wiring(wrong_token="chunk end: own", chunk=chunk)
        yield Hypothesis(f"chunk-tail-own-token-{chunk}", cause, does, _CHUNK_FIX, looks, wiring)
        name = f"chunk-tail-first-choice-{chunk}"
        if bench.has_first_choices:
            does = (
                f"The last row of each chunk of {chunk} takes the target's first choice, not the prompt's next token."
            )
            wiring = Wiring(wrong_token="chunk end: first choice", chunk=chunk)
            yield Hypothesis(name, cause, does, _CHUNK_FIX, looks, wiring)
        else:
            yield LeftOut(name, cause, "The trace lacks the target's first choices.", "Record it with `capture`.")


def _windows(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    cause: Cause = "draft_context_length"
    fix = "Raise the draft's context: its max_position_embeddings and rope in config.json, or the draft window flag."
    looks = "right with short prompts, falls as texts grow"
    windows = [window for window in _WINDOWS if window < bench.longest]
    windows = windows or [window for window in _SHORT_WINDOWS if window < bench.longest]
    if not windows:
        reason = f"No sequence of the trace is longer than {_SHORT_WINDOWS[-1]} tokens."
        yield LeftOut("window", cause, reason)
        yield LeftOut("no-drafts-past", cause, reason)
    for window in windows:
        does = f"The draft sees only the last {window} tokens."
        yield Hypothesis(f"window-{window}", cause, does, fix, looks, Wiring(window=window))
        does = f"From {window} tokens on nothing is accepted: the draft's context ends there."
        wiring = Wiring(no_drafts_from=window)
        yield Hypothesis(f"no-drafts-past-{window}", cause, does, fix, looks, wiring)

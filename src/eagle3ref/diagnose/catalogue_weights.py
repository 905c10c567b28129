"""Faults of head, vocabulary and embedding: the matrices that are missing, overwritten or of another model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.hypothesis import Cause, Hypothesis, LeftOut
from eagle3ref.diagnose.wiring import Head, Vocabulary, Wiring

_MATRIX: Cause = "embed_lm_head"
_DEAD = "acceptance length 1.00"


def weight_faults(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    """All of them."""
    yield from _vocabularies(bench)
    yield from _heads(bench)
    yield from _embeddings(bench)


def _vocabularies(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    cause: Cause = "vocab_map"
    kinds: tuple[tuple[str, Vocabulary, str], ...] = (
        ("d2t-ignored", "ignored", "It takes draft ids for target ids: d2t is not read."),
        ("d2t-absolute", "absolute", "It takes the offsets of d2t for target ids."),
        ("d2t-doubled", "doubled", "It adds the draft id to d2t twice, as if the table held absolute ids."),
        ("d2t-shuffled", "shuffled", "Its d2t belongs to another export of the draft."),
    )
    ids = bench.draft.target_ids.cpu()
    if torch.equal(ids, torch.arange(len(ids))):
        for name, _, _ in kinds:
            yield LeftOut(name, cause, "The draft's ids are the target's: there is no map to get wrong.")
        return
    fix = "Check that the file holds d2t as ids minus arange, int64, and that the engine loads it."
    looks = "at 1.00 or far below, at every position; a few frequent tokens may survive"
    for name, vocabulary, does in kinds:
        yield Hypothesis(name, cause, does, fix, looks, Wiring(vocabulary=vocabulary))


def _heads(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    fix = "Export the draft with its lm_head and with draft_vocab_size in config.json."
    does = "The file has no lm_head that the engine loads: it runs the random one that it initialised."
    yield Hypothesis("head-random", _MATRIX, does, fix, _DEAD, Wiring(head="random"))
    kinds: tuple[tuple[str, Head, str], ...] = (
        ("head-of-target", "target", "The draft runs the target's lm_head over the whole vocabulary, without d2t."),
        ("head-first-rows", "target rows", "The draft runs the first rows of the target's lm_head, with d2t."),
        ("head-target-by-d2t", "target d2t", "The draft runs the rows of the target's lm_head that d2t names."),
    )
    config, own = bench.draft.config, bench.draft.lm_head.weight
    is_the_targets = bench.shared is not None and _is_same(own, bench.shared.lm_head())
    for name, head, does in kinds:
        if bench.shared is None:
            yield LeftOut(name, _MATRIX, "The target's lm_head is not known.", "Pass the target (--target).")
        elif config.hidden_size != config.target_hidden_size:
            yield LeftOut(name, _MATRIX, "The target's lm_head is of another width than the draft.")
        elif head != "target" and config.draft_vocab_size == config.vocab_size:
            yield LeftOut(name, _MATRIX, "The draft has the target's vocabulary.")
        elif is_the_targets:
            yield LeftOut(name, _MATRIX, "The draft's lm_head is the target's.")
        else:
            yield Hypothesis(name, _MATRIX, does, fix, "about 1.3 or less, at every position", Wiring(head=head))


def _embeddings(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    fix = "Check that the draft's file has embed_tokens, or that the engine takes the target's."
    does = "The draft runs a random embedding: none was loaded."
    low = "far below, at every position"
    yield Hypothesis("embedding-random", _MATRIX, does, fix, low, Wiring(embedding="random"))
    does = "The draft runs the embedding of another model: right in scale, with other rows for its tokens."
    yield Hypothesis("embedding-foreign", _MATRIX, does, fix, low, Wiring(embedding="shuffled"))
    name = "embedding-of-target"
    config = bench.draft.config
    if bench.shared is None:
        yield LeftOut(name, _MATRIX, "The target's embedding is not known.", "Pass the target (--target).")
    elif config.hidden_size != config.target_hidden_size:
        yield LeftOut(name, _MATRIX, "The target's embedding is of another width than the draft.")
    elif bench.shared.has_embedding(bench.draft.embed_tokens.weight):
        yield LeftOut(name, _MATRIX, "The draft's embedding is the target's.")
    else:
        does = "It replaces the draft's own embedding by the target's, as SGLang does."
        fix = "Serve with vLLM, which keeps it, or train with the target's embedding frozen."
        yield Hypothesis(name, _MATRIX, does, fix, low, Wiring(embedding="target"))


def _is_same(own: torch.Tensor, other: torch.Tensor) -> bool:
    return own.shape == other.shape and torch.equal(own, other.to(own.device, own.dtype))

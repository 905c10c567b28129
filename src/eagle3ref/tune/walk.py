"""The walk of every setting at once: integers from rank tables to rounds by accepted drafts. No draft runs here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3ref.config import TreeConfig
from eagle3ref.positions import SequenceRanks

Counts = NDArray[np.int32]
_CELLS_AT_ONCE = 1 << 23  # bytes of accepted counts, settings x sequences x roots, that exist at a time


def walk_settings(ranks: Sequence[SequenceRanks], settings: Sequence[TreeConfig]) -> tuple[Counts, Counts]:
    """Walk each of P sequences under each of K settings, from its first root to the end of its record.

    Args:
        ranks: of one topk; every setting lies within the tree that they answer.
        settings: of that topk.

    Returns:
        histogram: int32 [K, P, S + 1], complete rounds by accepted drafts, S the largest num_steps of the settings.
        censored: int32 [K, P], rounds whose num_steps tokens run past the record.
    """
    most_steps = max(tree.num_steps for tree in settings)
    histogram = np.zeros((len(settings), len(ranks), most_steps + 1), np.int32)
    censored = np.zeros((len(settings), len(ranks)), np.int32)
    for some in _batches(ranks, len(settings)):
        lengths = np.array([len(ranks[i].ranks) for i in some])
        accepted = _accepted([ranks[i] for i in some], settings)
        histogram[:, some], censored[:, some] = _walk(accepted, lengths, settings, most_steps)
    return histogram, censored


def _batches(ranks: Sequence[SequenceRanks], num_settings: int) -> Iterator[list[int]]:
    """Sequences of similar lengths, so that little is padded and memory does not grow with their number."""
    batch: list[int] = []
    for i in sorted(range(len(ranks)), key=lambda i: len(ranks[i].ranks)):
        if batch and (len(batch) + 1) * len(ranks[i].ranks) * num_settings > _CELLS_AT_ONCE:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _accepted(ranks: Sequence[SequenceRanks], settings: Sequence[TreeConfig]) -> NDArray[np.unsignedinteger[Any]]:
    """[K, P, R], drafts kept at each root: how many places of true nodes the setting's tree has room for."""
    longest = max(len(sequence.ranks) for sequence in ranks)
    small = np.min_scalar_type(max(tree.num_steps for tree in settings))
    found = np.zeros((len(settings), len(ranks), longest), small)
    for steps in sorted({tree.num_steps for tree in settings}):
        chosen = [k for k, tree in enumerate(settings) if tree.num_steps == steps]
        widths = np.array([settings[k].num_draft_tokens for k in chosen])
        # One bit for each place that a true node has; different nodes have different places.
        hits = np.zeros((int(widths.max()), len(ranks), longest), small)
        for p, sequence in enumerate(ranks):
            places = sequence.ranks[:, :steps, steps - 1].numpy()  # [R, steps]
            root, depth = np.nonzero(places < len(hits))
            hits[places[root, depth], p, root] = 1
        found[chosen] = np.cumsum(hits, axis=0, dtype=small)[widths - 1]
    return found


def _walk(
    accepted: NDArray[np.unsignedinteger[Any]],
    lengths: NDArray[np.int64],
    settings: Sequence[TreeConfig],
    most_steps: int,
) -> tuple[Counts, Counts]:
    """One walker for each setting and sequence; all take their next round together."""
    num_settings, num_sequences, longest = accepted.shape
    num_lanes = num_settings * num_sequences
    histogram = np.zeros(num_lanes * (most_steps + 1), np.int32)
    censored = np.zeros(num_lanes, np.int32)
    flat, end = accepted.ravel(), np.tile(lengths, num_settings)
    # A root r is complete while num_steps recorded tokens follow it; len(ranks) counts all roots but the last token.
    complete_before = end + 1 - np.repeat([tree.num_steps for tree in settings], num_sequences)
    lane = np.flatnonzero(end > 0)
    root = np.zeros(len(lane), np.int64)
    while len(lane):
        kept = flat[lane * longest + root].astype(np.int64)
        complete = root < complete_before[lane]
        histogram[lane * (most_steps + 1) + kept] += complete  # a lane occurs once: nothing is lost in +=
        censored[lane] += ~complete
        root += kept + 1
        walks = root < end[lane]
        lane, root = lane[walks], root[walks]
    shape = (num_settings, num_sequences)
    return histogram.reshape(*shape, most_steps + 1), censored.reshape(shape)

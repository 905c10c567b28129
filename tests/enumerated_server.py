"""A server as an enumeration: it drafts, decides and emits by the rule's own algorithm, and knows nothing of records.

Every text, every draft and every decision is followed with its probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from oracles import softmax, top_k_then_top_p
from recorded_world import World

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.nn import Prefix, Rows

Step = Iterator[tuple[float, int, tuple[int, ...]]]
"""Outcomes of a round from a prefix: probability, accepted drafts, the new prefix."""
Play = Callable[[tuple[int, ...]], Step]


def target_probs(world: World, prefix: tuple[int, ...]) -> list[float]:
    """Of the token after a prefix, in plain Python."""
    return plain_probs(world, tuple((world.head @ world.states(prefix)[1]).tolist()))


@cache
def plain_probs(world: World, logits: tuple[float, ...]) -> list[float]:
    return top_k_then_top_p(softmax(logits, world.temperature), world.top_k, world.top_p)


def draft_rows(draft: Eagle3Draft, world: World, prefix: tuple[int, ...]):
    """The draft's own rows of a prefix, without cache or batch: its last row, and the rows behind a chain."""
    root = len(prefix) - 1
    row = torch.arange(root)
    aux = torch.stack([world.states(prefix[:end])[0] for end in range(1, root + 1)])
    following = torch.tensor(prefix[1:])
    output = draft(draft.fuse(aux)[None, None], following[None, None], row[None, None], mask=row[:, None] >= row)
    every_row = torch.ones(1, 1, 1, root, dtype=torch.bool)
    return output, [Prefix(Rows(rows.first[:, 0], rows.second[:, 0]), every_row) for rows in output.rows]


def draft_probs(draft: Eagle3Draft, world: World, prefix: tuple[int, ...], path: tuple[int, ...]) -> list[float]:
    """Of the draft token after a path of drafts from the root, over the target's vocabulary."""
    output, before = draft_rows(draft, world, prefix)
    state, normed, own = output.state[:, :, -1:], output.normed[:, :, -1:], None
    for i, token in enumerate(path):
        position = torch.tensor([[[len(prefix) - 1 + i]]])
        mask = torch.ones(1, 1, 1, i + 1, dtype=torch.bool)
        state, normed, own = draft(state, torch.tensor([[[token]]]), position, mask=mask, own=own, prefix=before)
    probs = softmax(draft.logits(normed)[0, 0, 0].tolist(), world.temperature)
    return [
        dict(zip(draft.target_ids.tolist(), probs, strict=True)).get(token, 0.0) for token in range(len(world.head))
    ]


def drafted_paths(draft: Eagle3Draft, world: World, tree: e3.TreeConfig, prefix: tuple[int, ...]) -> set:
    """The paths from the root of every node of the tree."""
    output, before = draft_rows(draft, world, prefix)
    first = FirstLevel(output.state[:, 0, -1:], *best_next(draft, output.normed[:, 0, -1:], tree.topk))
    root = torch.tensor([len(prefix) - 1])
    built = e3.build_tree(
        propose(draft, first, root[None], before, tree),
        root_tokens=torch.tensor(prefix[-1:]),
        prefix_lengths=root,
        num_draft_tokens=tree.num_draft_tokens,
    )
    return {tuple(built.tokens[0, mask.nonzero().flatten()[1:]].tolist()) for mask in built.tree_mask[0]}


def draw_and_look(draft: Eagle3Draft, world: World, tree: e3.TreeConfig, prefix: tuple[int, ...]) -> Step:
    """Top drafts: the next token is drawn, and kept as long as the tree holds it."""
    paths = drafted_paths(draft, world, tree, prefix)

    def walk(path: tuple[int, ...]) -> Step:
        for token, p in enumerate(target_probs(world, prefix + path)):
            longer = (*path, token)
            if longer in paths:
                yield from ((p * rest, *outcome) for rest, *outcome in walk(longer))
            else:
                yield p, len(path), prefix + longer

    yield from walk(())


def reject_one_by_one(draft: Eagle3Draft, world: World, tree: e3.TreeConfig, prefix: tuple[int, ...]) -> Step:
    """Arxiv 2211.17192, algorithm 1: keep with target / draft, at the first rejection draw from what is left."""
    for chain, likely in chains(draft, world, tree.num_steps, prefix):
        path: tuple[int, ...] = ()
        for token, q in chain:
            p = target_probs(world, prefix + path)
            keep = min(1.0, p[token] / q[token])
            left = normalised([max(a - b, 0.0) for a, b in zip(p, q, strict=True)])
            yield from ((likely * (1 - keep) * r, len(path), (*prefix, *path, t)) for t, r in enumerate(left))
            likely, path = likely * keep, (*path, token)
        yield from (
            (likely * p, len(path), (*prefix, *path, t)) for t, p in enumerate(target_probs(world, prefix + path))
        )


def verify_as_block(draft: Eagle3Draft, world: World, tree: e3.TreeConfig, prefix: tuple[int, ...]) -> Step:
    """Arxiv 2403.10444, algorithm 2, with its h_i: the longest block that passes its own test is kept."""
    for chain, likely in chains(draft, world, tree.num_steps, prefix):
        drafted = tuple(token for token, _ in chain)
        p_block, passes, left = 1.0, [1.0], []
        for i in range(tree.num_steps + 1):
            p = target_probs(world, prefix + drafted[:i])
            if i:
                before, q = target_probs(world, prefix + drafted[: i - 1]), chain[i - 1][1]
                p_block = min(p_block * before[drafted[i - 1]] / q[drafted[i - 1]], 1.0)
            if i == tree.num_steps:
                passes.append(p_block)
                left.append(p)
            else:
                residual = [max(p_block * a - b, 0.0) for a, b in zip(p, chain[i][1], strict=True)]
                if i:
                    total = sum(residual) + 1 - p_block
                    passes.append(sum(residual) / total if total > 0 else 0.0)
                left.append(normalised(residual))
        undecided = likely
        for i in range(tree.num_steps, -1, -1):
            yield from ((undecided * passes[i] * r, i, (*prefix, *drafted[:i], t)) for t, r in enumerate(left[i]))
            undecided *= 1 - passes[i]


def chains(draft: Eagle3Draft, world: World, num_steps: int, prefix: tuple[int, ...]):
    """Every chain of sampled drafts, as (token, the distribution it was drawn from), with its probability."""
    for tokens in itertools.product(draft.target_ids.tolist(), repeat=num_steps):
        q = [draft_probs(draft, world, prefix, tokens[:i]) for i in range(num_steps)]
        yield list(zip(tokens, q, strict=True)), math.prod(q[i][token] for i, token in enumerate(tokens))


def normalised(masses: list[float]) -> list[float]:
    total = sum(masses)
    return [mass / total for mass in masses] if total > 0 else [0.0] * len(masses)


def of_the_process(play: Play, world: World, prompt: tuple[int, ...], length: int, num_steps: int) -> np.ndarray:
    """[S+1], expected complete rounds by c of one answer up to ``length`` tokens, following every outcome."""

    @cache
    def from_root(prefix: tuple[int, ...]) -> tuple[float, ...]:
        total = np.zeros(num_steps + 1)
        if len(prefix) - 1 + num_steps < length:
            for p, accepted, longer in play(prefix):
                if p > 0:
                    total += p * (np.eye(num_steps + 1)[accepted] + from_root(longer))
        return tuple(total)

    first = target_probs(world, prompt)
    return sum(p * np.array(from_root((*prompt, token))) for token, p in enumerate(first))

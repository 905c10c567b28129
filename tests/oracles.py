"""Slow, independent restatements in plain Python: lists, dicts and recursion, nothing from the package or torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

Path = tuple[int, ...]
Draft = Callable[[Path], list[tuple[float, int]]]
"""Tokens from the root -> (probability, token) of its K best children, best first."""


def fp32(value: float) -> float:
    """The nearest fp32; a product of two fp32 is exact in a Python float, so this rounds it once."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def best(scores: Sequence[float], k: int) -> list[int]:
    """Indices of the k best: higher score, then lower index."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:k]


def beam_search(draft: Draft, num_steps: int, topk: int) -> list[tuple[float, Path]]:
    """Every candidate as (fp32 score, tokens from the root), in flat order."""
    everything: list[tuple[float, Path]] = []
    beams: list[tuple[float, Path]] = [(1.0, ())]
    for _ in range(num_steps):
        children = [(fp32(score * p), (*path, token)) for score, path in beams for p, token in draft(path)]
        everything += children
        beams = [children[index] for index in best([score for score, _ in children], topk)]
    return everything


def tree_paths(candidates: Sequence[tuple[float, Path]], num_draft_tokens: int) -> list[Path]:
    """The path of every node of the tree, root first."""
    chosen = sorted(best([score for score, _ in candidates], num_draft_tokens - 1))
    return [(), *(candidates[index][1] for index in chosen)]


def parents_of_paths(paths: Sequence[Path]) -> list[int]:
    """A path's parent is the path without its last token: no index arithmetic."""
    node_of = {path: node for node, path in enumerate(paths)}
    return [-1, *(node_of[path[:-1]] for path in paths[1:])]


def parents_from_links(next_token: Sequence[int], next_sibling: Sequence[int]) -> list[int]:
    """SGLang's linked lists -> parents."""
    parents = [-1] * len(next_token)

    def adopt(parent: int, child: int) -> None:
        if child < 0:
            return
        parents[child] = parent
        adopt(child, next_token[child])
        adopt(parent, next_sibling[child])

    adopt(0, next_token[0])
    return parents


def links(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """(next_token, next_sibling) as SGLang makes them: nodes N-1 down to 1 go to the head of the parent's list."""
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        next_sibling[node] = next_token[parents[node]]
        next_token[parents[node]] = node
    return next_token, next_sibling


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """The node, its parent, ... and the root."""
    return [node] if node == 0 else [node, *ancestors(parents, parents[node])]


def tree_mask(parents: Sequence[int]) -> list[list[bool]]:
    """Who may attend to whom, by walking up from every node."""
    size = len(parents)
    return [[column in ancestors(parents, row) for column in range(size)] for row in range(size)]


def all_topologies(size: int) -> Iterator[list[int]]:
    """Every list of parents with a parent before its children: (size - 1)! of them."""
    if size == 1:
        yield [-1]
        return
    for parents in all_topologies(size - 1):
        for parent in range(size - 1):
            yield [*parents, parent]


def greedy_walk(tokens: Sequence[int], parents: Sequence[int], target: Sequence[int], node: int = 0) -> list[int]:
    """Accepted nodes below ``node``: the first child with the target's token, then on from there."""
    for child in range(len(tokens)):
        if parents[child] == node and tokens[child] == target[node]:
            return [child, *greedy_walk(tokens, parents, target, child)]
    return []


def longest_accepted(tokens: Sequence[int], parents: Sequence[int], target: Sequence[int]) -> list[list[int]]:
    """All longest paths whose every token is the target's after the parent, found by trying every node as the end."""
    paths = [ancestors(parents, node)[-2::-1] if node else [] for node in range(len(tokens))]
    fitting = [path for path in paths if all(tokens[node] == target[parents[node]] for node in path)]
    longest = max(map(len, fitting))
    return [path for path in fitting if len(path) == longest]


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Probabilities in fp64 with an exactly rounded sum."""
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def top_k_then_top_p(probs: Sequence[float], top_k: int, top_p: float) -> list[float]:
    """Keep the k best and what ties with the last, renormalise; then the fewest that hold top_p, with ties; again."""
    if top_k:
        probs = _kept(probs, sorted(probs, reverse=True)[min(top_k, len(probs)) - 1])
    if top_p < 1:
        for threshold in sorted(set(probs), reverse=True):
            if math.fsum(p for p in probs if p >= threshold) >= top_p:
                return _kept(probs, threshold)
    return list(probs)


def _kept(probs: Sequence[float], threshold: float) -> list[float]:
    total = math.fsum(p for p in probs if p >= threshold)
    return [p / total if p >= threshold else 0.0 for p in probs]


def inverse_cdf(probs: Sequence[float], uniform: float) -> int:
    """First index whose cumulative mass exceeds uniform * total, in exact fractions; else the last of positive mass."""
    masses = [Fraction(p) for p in probs]
    limit, cumulative = Fraction(uniform) * sum(masses), Fraction(0)
    for index, mass in enumerate(masses):
        cumulative += mass
        if mass > 0 and cumulative > limit:
            return index
    return max(index for index, mass in enumerate(masses) if mass > 0)

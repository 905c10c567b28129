"""Random rounds of tree attention, in the form of both kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from eagle3ref.kernels.eager_attention import pack_mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # there Triton's kernels are interpreted
SCALE = 0.3
FLOATS = ("query", "prefix_keys", "prefix_values", "own_keys", "own_values")


@dataclass(frozen=True)
class Round:
    """The arguments of one grouped-query call, and the mask [G, Q, N] that ``ancestors`` packs."""

    query: Tensor
    prefix_keys: Tensor
    prefix_values: Tensor
    prefix_lengths: Tensor
    own_keys: Tensor
    own_values: Tensor
    mask: Tensor
    prefix_of: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Round:
        floats = {f.name: getattr(self, f.name) for f in fields(self) if f.name in FLOATS}
        return replace(self, **{name: tensor.to(dtype) for name, tensor in floats.items()})

    def on(self, function: Callable[..., Tensor], **options: int) -> Tensor:
        before = (self.query, self.prefix_keys, self.prefix_values, self.prefix_lengths)
        after = (self.own_keys, self.own_values, pack_mask(self.mask), SCALE)
        return function(*before, *after, prefix_of=self.prefix_of, **options)

    def latent(self, rope_size: int) -> LatentRound:
        """The same round for the latent form: one key-value head, whose keys are a latent and a roped key."""
        split = [self.key_size - rope_size, rope_size]
        (query, rope), (prefix, prefix_rope), (own, own_rope) = (
            part.split(split, -1) for part in (self.query, self.prefix_keys[:, :, 0], self.own_keys[:, :, 0])
        )
        return LatentRound(self, (query, rope, prefix, prefix_rope), (own, own_rope))

    @property
    def key_size(self) -> int:
        return self.query.shape[-1]


@dataclass(frozen=True)
class LatentRound:
    """The arguments of one latent call, cut from a ``Round`` whose values are not read."""

    round: Round
    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    def on(self, function: Callable[..., Tensor], **options: int) -> Tensor:
        after = (*self.after, pack_mask(self.round.mask), SCALE)
        return function(*self.before, self.round.prefix_lengths, *after, prefix_of=self.round.prefix_of, **options)


def make_round(
    groups: int = 2,
    queries: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    key_size: int = 20,
    value_size: int = 12,
    lengths: tuple[int, ...] = (1, 40),
    own: int = 5,
    prefix_of: tuple[int, ...] | None = None,
    visible: float = 0.5,
    sharpness: float = 1.0,
) -> Round:
    """A random round in fp64, with scores of the size of ``sharpness``. Each group has room for the longest length."""
    tokens, prefixes = max(lengths), groups if prefix_of is None else max(prefix_of) + 1

    def rows(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(DEVICE)

    return Round(
        rows(groups, queries, heads, key_size) * sharpness,
        rows(prefixes, tokens, kv_heads, key_size),
        rows(prefixes, tokens, kv_heads, value_size),
        torch.tensor(lengths, device=DEVICE),
        rows(groups, own, kv_heads, key_size),
        rows(groups, own, kv_heads, value_size),
        torch.rand(groups, queries, own).to(DEVICE) < visible,
        None if prefix_of is None else torch.tensor(prefix_of, device=DEVICE),
    )


ROUNDS = {
    "ragged prefixes": {"groups": 3, "lengths": (0, 1, 40)},
    "groups share a prefix": {"groups": 3, "prefix_of": (1, 0, 1), "lengths": (7, 33, 40)},
    "a head for each": {"heads": 3, "kv_heads": 3, "queries": 3},
    "eight heads for each": {"heads": 16, "kv_heads": 2, "groups": 1, "lengths": (17,), "queries": 1},
    "multi-query": {"heads": 6, "kv_heads": 1, "queries": 7, "groups": 1, "lengths": (20,)},  # 42 rows: several tiles
    "more own rows than a word": {"own": 35, "groups": 1, "lengths": (3,)},
    "no prefix at all": {"lengths": (0, 0), "visible": 1.0},
    "no own rows": {"own": 0, "lengths": (1, 37)},
    "nothing hidden": {"visible": 1.0},
    # Many rows: where one key has all the weight nothing is rounded, and a few others would decide.
    "scores too large for exp": {
        "groups": 1,
        "queries": 32,
        "heads": 2,
        "kv_heads": 1,
        "lengths": (30,),
        "sharpness": 100,
    },
}

"""Where the device check runs and at which sizes: Kimi-K2.5's on a GPU, tiny ones where it is rehearsed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sizes:
    """Of a draft, of an expert of its target, and of the batches that are checked and timed."""

    hidden: int
    heads: int
    kv_heads: int  # of the grouped form; Kimi's published Llama drafts have one for each head, and both are checked
    head_dim: int
    query_rank: int
    latent: int
    nope: int
    rope: int
    value: int
    intermediate: int
    vocab: int
    draft_vocab: int
    expert: int  # intermediate size of a routed expert
    num_experts: int  # those of one of eight ranks
    checked_rows: tuple[int, ...]
    timed_rows: tuple[int, ...]
    prefix: int  # rows of the prefixes that are checked
    tree_nodes: int  # rows of a whole tree
    timed_prefixes: tuple[tuple[int, int], ...]  # sequences, and the rows that each has committed
    batches: tuple[int, ...]  # of the draft loop
    buckets: tuple[int, ...]
    trees: tuple[tuple[int, int, int], ...]  # num_steps, topk, num_draft_tokens; the first is a chain
    copied_bytes: int
    matmul: int  # rows, columns and depth of the product that gives the ceiling


KIMI = Sizes(
    hidden=7168,
    heads=64,
    kv_heads=8,
    head_dim=128,
    query_rank=1536,
    latent=512,
    nope=128,
    rope=64,
    value=128,
    intermediate=18432,
    vocab=163840,
    draft_vocab=32000,
    expert=2048,
    num_experts=48,
    checked_rows=(1, 16, 61),
    timed_rows=(1, 4, 16, 64, 256),
    prefix=4001,
    tree_nodes=64,
    timed_prefixes=((1, 32768), (16, 4096)),
    batches=(1, 3, 8),
    buckets=(1, 4, 8),
    trees=((3, 1, 4), (5, 4, 16), (8, 8, 64)),
    copied_bytes=2**32,
    matmul=8192,
)
TINY = Sizes(
    hidden=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    query_rank=24,
    latent=16,
    nope=16,
    rope=16,
    value=16,
    intermediate=48,
    vocab=96,
    draft_vocab=64,
    expert=32,
    num_experts=3,
    checked_rows=(3, 5),
    timed_rows=(2,),
    prefix=9,
    tree_nodes=5,
    timed_prefixes=((1, 9),),
    batches=(1,),
    buckets=(2,),
    trees=((2, 1, 3), (3, 2, 5)),
    copied_bytes=2**10,
    matmul=8,
)


@dataclass(frozen=True)
class Setting:
    """One run of the check.

    Args:
        device: ``cuda`` or, rehearsed, ``cpu``.
        rehearsed: every line runs, on tiny sizes and in Triton's interpreter.
        timing: whether this is the round in which times are taken, and nothing else.
    """

    device: str
    rehearsed: bool
    timing: bool

    @property
    def sizes(self) -> Sizes:
        """Kimi's, or tiny ones."""
        return TINY if self.rehearsed else KIMI

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """What kernels are checked in. The interpreter's bf16 is wrong, so there fp16 stands for both."""
        return (torch.float16,) if self.rehearsed else (torch.bfloat16, torch.float32)

    @property
    def served(self) -> torch.dtype:
        """The dtype that kernels are timed in."""
        return self.dtypes[0]

    def random(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        """Normal numbers on the device, in the served dtype unless told otherwise."""
        return (torch.randn(*shape, device=self.device) * scale).to(dtype or self.served)

    def integers(self, highest: int, *shape: int) -> Tensor:
        """int64 0 to ``highest``, both included."""
        return torch.randint(highest + 1, shape, device=self.device)

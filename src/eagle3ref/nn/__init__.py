"""Layers that targets and drafts share.

Shapes: B sequences, P groups of rows per sequence (1 in a target; one per root in a draft replay), Q new rows of a
group, K keys, H heads, C hidden size. New rows may attend to the *prefix*, which all groups of a sequence share, and to
their group's *own* rows.
"""

from eagle3ref.nn.attend import Prefix, Rows, SharedRows
from eagle3ref.nn.attention import GQAttention, MLAttention, make_attention
from eagle3ref.nn.kv_cache import KVCache
from eagle3ref.nn.mlp import BLOCK_ROWS, GatedMatrices, GatedMLP, in_blocks
from eagle3ref.nn.moe import Expert, ExpertSource, MoE, Router
from eagle3ref.nn.norm import RMSNorm
from eagle3ref.nn.rope import RotaryEmbedding

__all__ = [
    "BLOCK_ROWS",
    "Expert",
    "ExpertSource",
    "GQAttention",
    "GatedMLP",
    "GatedMatrices",
    "KVCache",
    "MLAttention",
    "MoE",
    "Prefix",
    "RMSNorm",
    "RotaryEmbedding",
    "Router",
    "Rows",
    "SharedRows",
    "in_blocks",
    "make_attention",
]

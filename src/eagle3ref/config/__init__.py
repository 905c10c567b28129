"""Frozen, validated settings: the tree, and what config.json says of a target or a draft."""

from eagle3ref.config.draft import DraftConfig
from eagle3ref.config.layers import GQAConfig, MLAConfig, MoEConfig
from eagle3ref.config.rope import RopeConfig
from eagle3ref.config.target import KimiK25Config, TargetConfig
from eagle3ref.config.tree import TreeConfig, TreeKV

__all__ = [
    "DraftConfig",
    "GQAConfig",
    "KimiK25Config",
    "MLAConfig",
    "MoEConfig",
    "RopeConfig",
    "TargetConfig",
    "TreeConfig",
    "TreeKV",
]

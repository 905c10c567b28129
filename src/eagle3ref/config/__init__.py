"""Frozen, validated settings: the tree, and what config.json says of a target or a draft."""

from eagle3ref.config.draft import FINAL_NORM_MEANING, DraftConfig, FinalNorm
from eagle3ref.config.draft_family import DraftFamily
from eagle3ref.config.layers import GQAConfig, MLAConfig, MoEConfig
from eagle3ref.config.rope import RopeConfig
from eagle3ref.config.rule import RULE_MEANING, AcceptanceRule, RuleName
from eagle3ref.config.target import KimiK25Config, TargetConfig
from eagle3ref.config.tree import TreeConfig, TreeKV

__all__ = [
    "FINAL_NORM_MEANING",
    "RULE_MEANING",
    "AcceptanceRule",
    "DraftConfig",
    "DraftFamily",
    "FinalNorm",
    "GQAConfig",
    "KimiK25Config",
    "MLAConfig",
    "MoEConfig",
    "RopeConfig",
    "RuleName",
    "TargetConfig",
    "TreeConfig",
    "TreeKV",
]

"""Frozen, validated settings: the tree, the acceptance rule, and what config.json says of a target or a draft."""

from eagle3ref.config.draft import FINAL_NORM_MEANING, DraftConfig, FinalNorm
from eagle3ref.config.draft_family import DraftFamily
from eagle3ref.config.layers import AttentionKind, GQAConfig, MLAConfig, MoEConfig
from eagle3ref.config.rope import RopeConfig
from eagle3ref.config.rule import (
    CHAIN_RULES,
    GREEDY_TEMPERATURE,
    RULE_MEANING,
    AcceptanceRule,
    RuleName,
    default_rule,
)
from eagle3ref.config.target import KimiK25Config, TargetConfig
from eagle3ref.config.tree import TreeConfig, TreeKV

__all__ = [
    "CHAIN_RULES",
    "FINAL_NORM_MEANING",
    "GREEDY_TEMPERATURE",
    "RULE_MEANING",
    "AcceptanceRule",
    "AttentionKind",
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
    "default_rule",
]

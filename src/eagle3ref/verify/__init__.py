"""Verification: which drafts of a tree the target accepts, and what it says after them. One rule a file."""

from eagle3ref.verify.block import verify_block
from eagle3ref.verify.coins import seeded_coins, seeded_token
from eagle3ref.verify.greedy import verify_greedy
from eagle3ref.verify.multi_round import verify_multi_round
from eagle3ref.verify.rejection import verify_rejection
from eagle3ref.verify.sampled import verify_sampled
from eagle3ref.verify.target_only import verify_target_only
from eagle3ref.verify.walk import Verification

__all__ = [
    "Verification",
    "seeded_coins",
    "seeded_token",
    "verify_block",
    "verify_greedy",
    "verify_multi_round",
    "verify_rejection",
    "verify_sampled",
    "verify_target_only",
]

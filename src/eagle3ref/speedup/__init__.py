"""What acceptance is worth: tokens per second, the break-even length, and which time is to blame."""

from eagle3ref.speedup.counts_file import read_counts
from eagle3ref.speedup.depths import ChainDepth, chain_depths
from eagle3ref.speedup.expected import Speedup, speedup
from eagle3ref.speedup.measured import MeasuredRound, measured_round
from eagle3ref.speedup.rate import rate_for_length
from eagle3ref.speedup.span import Quantity, Span
from eagle3ref.speedup.times import RoundTimes, Term, target_step_from

__all__ = [
    "ChainDepth",
    "MeasuredRound",
    "Quantity",
    "RoundTimes",
    "Span",
    "Speedup",
    "Term",
    "chain_depths",
    "measured_round",
    "rate_for_length",
    "read_counts",
    "speedup",
    "target_step_from",
]

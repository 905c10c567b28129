"""Does a server accept what this draft on this target should, by its own figures?"""

from eagle3ref.crosscheck.comparison import KIND_MEANING, Comparison, Correction, Kind, UnequalRequest
from eagle3ref.crosscheck.crosscheck import compare, crosscheck
from eagle3ref.crosscheck.matching import Match, match_requests
from eagle3ref.crosscheck.more_data import MoreData
from eagle3ref.crosscheck.near_ties import NEAR_TIE_RATE, near_tie_probability
from eagle3ref.crosscheck.outcome import CrossCheck
from eagle3ref.crosscheck.predict import LengthForm, PredictedRequest, length_terms, predict_requests

__all__ = [
    "KIND_MEANING",
    "NEAR_TIE_RATE",
    "Comparison",
    "Correction",
    "CrossCheck",
    "Kind",
    "LengthForm",
    "Match",
    "MoreData",
    "PredictedRequest",
    "UnequalRequest",
    "compare",
    "crosscheck",
    "length_terms",
    "match_requests",
    "near_tie_probability",
    "predict_requests",
]

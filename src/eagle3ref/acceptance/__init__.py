"""Acceptance: the integers that were counted, what was expected of them, and the ratios of both."""

from eagle3ref.acceptance.counts import KIND_MEANING, AcceptanceCounts, Kind
from eagle3ref.acceptance.expected import ExpectedAcceptance
from eagle3ref.acceptance.ratios import AcceptanceRatios, RatioName

__all__ = ["KIND_MEANING", "AcceptanceCounts", "AcceptanceRatios", "ExpectedAcceptance", "Kind", "RatioName"]

"""What a given engine version does: streams it captures, files it reads, rules it applies, figures it prints."""

from eagle3ref.engines.capture import (
    FEWEST_LAYERS,
    CapturedPoints,
    captured_points,
    default_capture_points,
    ids_that_capture,
)
from eagle3ref.engines.catalog import PROFILES, engine_profile, engine_release
from eagle3ref.engines.profile import EngineProfile, Source
from eagle3ref.engines.sglang import SGLANG_0_5_23, SGLANG_LOG_ERAS

__all__ = [
    "FEWEST_LAYERS",
    "PROFILES",
    "SGLANG_0_5_23",
    "SGLANG_LOG_ERAS",
    "CapturedPoints",
    "EngineProfile",
    "Source",
    "captured_points",
    "default_capture_points",
    "engine_profile",
    "engine_release",
    "ids_that_capture",
]

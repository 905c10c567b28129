"""Recorded target runs: tokens and hidden states on disk, enough to replay any draft without the target."""

from eagle3ref.trace.capture import capture, plan_capture
from eagle3ref.trace.format import Trace
from eagle3ref.trace.header import RecordedSampling, TargetIdentity, TraceHeader
from eagle3ref.trace.manifest import ManifestEntry
from eagle3ref.trace.passes import LayerDone
from eagle3ref.trace.plan import CapturePlan
from eagle3ref.trace.prompts import Prompt, read_prompts
from eagle3ref.trace.sequence import RecordedSequence
from eagle3ref.trace.writer import TraceWriter

__all__ = [
    "CapturePlan",
    "LayerDone",
    "ManifestEntry",
    "Prompt",
    "RecordedSampling",
    "RecordedSequence",
    "TargetIdentity",
    "Trace",
    "TraceHeader",
    "TraceWriter",
    "capture",
    "plan_capture",
    "read_prompts",
]

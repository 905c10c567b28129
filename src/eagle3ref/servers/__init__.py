"""What servers say about acceptance: read from logs, metrics, request fields and benchmarks, or asked for live."""

from eagle3ref.servers.client import (
    Collection,
    Progress,
    RequestSettings,
    ServerFacts,
    collect,
    is_journal,
    read_journal,
)
from eagle3ref.servers.evidence.counters import between
from eagle3ref.servers.evidence.evidence import Evidence
from eagle3ref.servers.evidence.pooled import Pooled
from eagle3ref.servers.evidence.trend import Trend
from eagle3ref.servers.evidence.window_rounds import RoundsEstimate, all_rounds, window_rounds
from eagle3ref.servers.formats.prometheus import read_metrics
from eagle3ref.servers.formats.request_fields import request_reading
from eagle3ref.servers.formats.stream import TextReader, read, read_object
from eagle3ref.servers.rate.formulas import RateFormula
from eagle3ref.servers.rate.inference import infer_rate, infer_rates
from eagle3ref.servers.rate.reading import RateInference, RateReading
from eagle3ref.servers.read_file import read_file
from eagle3ref.servers.reading import NotAcceptance, Reading
from eagle3ref.servers.rounded import Rounded

__all__ = [
    "Collection",
    "Evidence",
    "NotAcceptance",
    "Pooled",
    "Progress",
    "RateFormula",
    "RateInference",
    "RateReading",
    "Reading",
    "RequestSettings",
    "Rounded",
    "RoundsEstimate",
    "ServerFacts",
    "TextReader",
    "Trend",
    "all_rounds",
    "between",
    "collect",
    "infer_rate",
    "infer_rates",
    "is_journal",
    "read",
    "read_file",
    "read_journal",
    "read_metrics",
    "read_object",
    "request_reading",
    "window_rounds",
]

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
from eagle3ref.servers.counters import between
from eagle3ref.servers.evidence import Evidence
from eagle3ref.servers.pooled import Pooled
from eagle3ref.servers.prometheus import read_metrics
from eagle3ref.servers.rate import infer_rate, infer_rates
from eagle3ref.servers.rate_formulas import RateFormula
from eagle3ref.servers.rate_reading import RateInference, RateReading
from eagle3ref.servers.read_file import read_file
from eagle3ref.servers.reading import NotAcceptance, Reading
from eagle3ref.servers.request_fields import request_reading
from eagle3ref.servers.rounded import Rounded
from eagle3ref.servers.stream import TextReader, read, read_object
from eagle3ref.servers.trend import Trend
from eagle3ref.servers.window_rounds import RoundsEstimate, all_rounds, window_rounds

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

"""What servers say about acceptance: read from logs, metrics, request fields and benchmarks, or asked for live."""

from eagle3ref.servers.reading import NotAcceptance, Reading
from eagle3ref.servers.rounded import Rounded

__all__ = ["NotAcceptance", "Reading", "Rounded"]

"""A running server, asked over HTTP: prompts out, answers and counters in, every step on disk."""

from eagle3ref.servers.client.collect import API_KEY_VARIABLE, collect
from eagle3ref.servers.client.collection import Collection, read_journal
from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.record import is_journal
from eagle3ref.servers.client.sending import Progress
from eagle3ref.servers.client.settings import RequestSettings

__all__ = [
    "API_KEY_VARIABLE",
    "Collection",
    "Progress",
    "RequestSettings",
    "ServerFacts",
    "collect",
    "is_journal",
    "read_journal",
]

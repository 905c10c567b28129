"""How the sources of an engine's facts are written: by release and file, or by pull request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3ref.engines.profile import Fact, Source, facts


@dataclass(frozen=True)
class Releases:
    """The releases of one engine in which something was read.

    Args:
        engine: its name.
        dates: ISO date of the upload to PyPI, by release.
    """

    engine: str
    dates: Mapping[str, str]

    def read(self, version: str, where: str) -> Source:
        """A file (or any words) in one of the releases."""
        return Source(f"{self.engine} {version}, {where}", self.dates[version])

    def pull(self, number: int, date: str, first: str) -> Source:
        """A pull request, opened on ``date``, and the release that has it first."""
        return Source(f"{self.engine} PR #{number}, first in {first}", date)

    def span(self, first: str, before: str, newest: str) -> dict[str, Fact]:
        """The facts ``versions``, ``version`` and ``since`` of the releases from ``first`` to ``newest``."""
        since = self.dates[first]
        source = Source(f"{self.engine} {first} to {newest} on PyPI", since)
        return facts(source, versions=f">={first},<{before}", version=newest, since=since)


def not_established(date: str) -> Source:
    """For a value that was looked for in vain, or not at all.

    Args:
        date: ISO date of the search.
    """
    return Source("not established", date)


def no_figures(source: Source) -> dict[str, Fact]:
    """The facts of an engine that prints no acceptance figures, or none that are known."""
    return facts(
        source,
        log_format=None,
        accept_length=None,
        accept_rate=None,
        accept_rate_meaning=None,
        log_interval=None,
        cuts_last_round_in_log=None,
        cuts_last_round_in_request=None,
        prefill_in_request_length=None,
        request_fields={},
        metrics={},
    )

"""Everything that was read of a server: in time order, each statement once, pooled and compared over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagle3ref.engines import engine_profile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.evidence.gathering import Gathering
from eagle3ref.servers.evidence.pooled import Pooled, pool
from eagle3ref.servers.evidence.trend import Trend, TrendBy, trend
from eagle3ref.servers.rate.inference import infer_rates
from eagle3ref.servers.rate.reading import RateInference
from eagle3ref.servers.read_file import read_file
from eagle3ref.servers.reading import NotAcceptance, Reading, Scope

_RATE_FORMATS = ("decode log", "/metrics gauge")
_STRICT_TOOLS = ("vLLM", "tokenspeed")
_STRONGEST_FIRST: tuple[Scope, ...] = ("request", "run", "window", "lifetime")


@dataclass(frozen=True)
class Evidence:
    """What was read.

    Args:
        readings: in time order where they have times, duplicates dropped.
        not_acceptance: lines that were recognized and say nothing about acceptance, by kind.
        warnings: of these, the server's own warnings about speculation, at most 1,000.
        remarks: what was dropped and why.
    """

    readings: tuple[Reading, ...]
    not_acceptance: Mapping[str, int] = field(default_factory=Counter)
    warnings: tuple[NotAcceptance, ...] = ()
    remarks: tuple[str, ...] = ()

    @classmethod
    def gather(cls, statements: Iterable[Reading | NotAcceptance], *, until_interrupted: bool = False) -> Evidence:
        """From what ``read`` yields, in any order; consecutive pages of counters also give their difference.

        Args:
            statements: may be as many as a log of years holds.
            until_interrupted: Ctrl-C ends them, as those of a file that is followed, and is no error.
        """
        gathering = Gathering()
        try:
            for statement in statements:
                gathering.add(statement)
        except KeyboardInterrupt:
            if not until_interrupted:
                raise
        return cls(gathering.in_order(), gathering.kinds, tuple(gathering.warnings), tuple(gathering.remarks()))

    @classmethod
    def read(cls, *paths: str | Path) -> Evidence:
        """From files, or all files of folders.

        Raises:
            Eagle3RefError: a path that cannot be read.
        """
        return cls.gather(statement for path in paths for statement in read_file(path))

    @property
    def requests(self) -> tuple[Reading, ...]:
        """One request each."""
        return self.of("request")

    @property
    def windows(self) -> tuple[Reading, ...]:
        """The log's intervals."""
        return self.of("window")

    @property
    def runs(self) -> tuple[Reading, ...]:
        """One benchmark each, or what counters gained."""
        return self.of("run")

    @property
    def lifetimes(self) -> tuple[Reading, ...]:
        """A server's totals since its start."""
        return self.of("lifetime")

    @property
    def references(self) -> tuple[Reading, ...]:
        """Values to compare with."""
        return self.of("reference")

    def of(self, scope: Scope) -> tuple[Reading, ...]:
        """The readings of one scope."""
        return tuple(reading for reading in self.readings if reading.scope == scope)

    def pooled(self, scope: Scope) -> Pooled | None:
        """The readings of one scope as one: those of the tool and format with the most; None if there are none.

        Of totals since the start, the last of each source counts.
        """
        groups: dict[tuple[str, str], list[Reading]] = {}
        for reading in self.of(scope):
            groups.setdefault((reading.tool, reading.format), []).append(reading)
        if not groups:
            return None
        # Counts beat figures, and then the larger group.
        chosen = max(groups.values(), key=lambda group: (_has_counts(group), len(group)))
        return pool(list({reading.source: reading for reading in chosen}.values()) if scope == "lifetime" else chosen)

    @property
    def best(self) -> Pooled | None:
        """The strongest that determines a length: requests, a run, windows, lifetime totals."""
        pooled = (self.pooled(scope) for scope in _STRONGEST_FIRST)
        return next((one for one in pooled if one is not None and one.length is not None), None)

    def trend(self, by: TrendBy = "time") -> Trend | None:
        """How the length changes, over requests or windows, whichever tell; None if neither does."""
        scopes: tuple[Scope, ...] = ("request", "window") if by == "prompt_tokens" else ("window", "request")
        trends = (trend(self.of(scope), by) for scope in scopes)
        return next((found for found in trends if found is not None), None)

    def rate(
        self,
        *,
        num_draft_tokens: int | None = None,
        num_steps: int | None = None,
        topk: int | None = None,
        engine: str | None = None,
    ) -> RateInference | None:
        """What the accept rates of all log lines together divide by what; None if there are none.

        Settings and version that are not given are those that the evidence states, if it states one.

        Args:
            num_draft_tokens: of the server, the root counted.
            num_steps: likewise.
            topk: likewise.
            engine: as ``infer_rate`` takes it.

        Raises:
            Eagle3RefError: an engine that is not known.
        """
        lines = [reading for reading in self.readings if reading.format in _RATE_FORMATS]
        pairs = [(line.accept_length, line.accept_rate) for line in lines]
        whole = [(length, rate) for length, rate in pairs if length is not None and rate is not None]
        if not whole:
            return None
        stated = [reading for reading in self.readings if reading.tool == lines[0].tool]
        return infer_rates(
            whole,
            num_draft_tokens=num_draft_tokens or _common(stated, "num_draft_tokens"),
            num_steps=num_steps or _common(stated, "num_steps"),
            topk=topk or _common(stated, "topk"),
            when=max((line.time for line in lines if line.time is not None), default=None),
            engine=engine or _stated_engine(stated),
            strict=all(line.tool in _STRICT_TOOLS for line in lines),
        )


def _has_counts(group: list[Reading]) -> bool:
    return any(reading.rounds is not None and reading.accepted_drafts is not None for reading in group)


def _stated_engine(readings: Iterable[Reading]) -> str | None:
    """The version that SGLang's ``/server_info`` states, if a profile covers it."""
    versions = {reading.other["version"] for reading in readings if "version" in reading.other}
    if len(versions) != 1:
        return None
    try:
        return engine_profile(f"sglang=={versions.pop()}").name
    except Eagle3RefError:
        return None


def _common(lines: Iterable[Reading], name: str) -> int | None:
    """The one value that the readings state."""
    stated = {getattr(line, name) for line in lines} - {None}
    return next(iter(stated)) if len(stated) == 1 else None

"""The profiles as the Markdown tables of docs/engines.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from eagle3ref.config import AcceptanceRule
from eagle3ref.engines.profile import EngineProfile, fact_names

_SPAN = ("versions", "version", "since")
_SIDE_BY_SIDE = (
    "capture_keys",
    "embedding",
    "lm_head",
    "honoured_keys",
    "ignored_keys",
    "unknown_tensors",
    "max_draft_layers",
    "short_rope",
    "tree_kv",
    "default_trees",
    "forces_chain_width",
    "sampled_rule",
    "sampled_options",
    "accept_rate_meaning",
    "log_interval",
    "cuts_last_round_in_log",
    "prefill_in_request_length",
)


def history_table(history: Sequence[EngineProfile]) -> str:
    """One row for each profile but the first: its releases, and what changed, with the sources."""
    rows = ["| releases | since | what changed |", "|---|---|---|"]
    for before, after in pairwise(history):
        rows.append(f"| {after.versions} | {after.since} | {'<br>'.join(_changes(before, after))} |")
    return "\n".join(rows)


def side_by_side_table(profiles: Sequence[EngineProfile]) -> str:
    """One row for each of the facts in which engines differ most."""
    rows = [f"| | {' | '.join(profile.name for profile in profiles)} |", f"|---|{'---|' * len(profiles)}"]
    for name in _SIDE_BY_SIDE:
        rows.append(f"| `{name}` | {' | '.join(_shown(getattr(profile, name)) for profile in profiles)} |")
    return "\n".join(rows)


def _changes(before: EngineProfile, after: EngineProfile) -> Iterator[str]:
    """A line for each source, with the fields that changed by it."""
    names = [name for name in fact_names() if name not in _SPAN and getattr(before, name) != getattr(after, name)]
    for source in dict.fromkeys(after.sources[name] for name in names):
        fields = [name for name in names if after.sources[name] == source]
        values = [f"`{name}`: {_difference(getattr(before, name), getattr(after, name))}" for name in fields]
        yield f"{source.where}: {'; '.join(values)}"


def _difference(old: Any, new: Any) -> str:
    """Of a mapping only the entries that are new or changed, of a tuple what was added; of other values the new one."""
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return _shown({key: value for key, value in new.items() if old.get(key) != value})
    if isinstance(new, tuple) and isinstance(old, tuple) and set(old) < set(new):
        return f"also {_shown(tuple(value for value in new if value not in old))}"
    return _shown(new)


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, tuple | Mapping) and not value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, AcceptanceRule):
        return _rule(value)
    if isinstance(value, Mapping):
        return _grouped({key: _shown(entry) for key, entry in value.items()})
    if isinstance(value, tuple):
        return ("/" if all(isinstance(entry, int) for entry in value) else ", ").join(map(_shown, value))
    return str(value.__doc__).split(".")[0] if callable(value) else str(value)


def _grouped(entries: Mapping[str, str]) -> str:
    """Entries with one value share it: ``a, b: value; c: other``."""
    keys = {value: [key for key in entries if entries[key] == value] for value in entries.values()}
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in keys.items())


def _rule(rule: AcceptanceRule) -> str:
    """Its name, and what is not the plain setting of it."""
    options = (("drafts sampled", rule.drafts == "sampled"), ("<=", rule.inclusive))
    extra = [words for words, is_set in options if is_set]
    return rule.name + (f" ({', '.join(extra)})" if extra else "")

"""Server flags as a user typed them, read as the engine's own parser would."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.flag_names import DIALECTS, Dialect, FlagName

_SWITCH_VALUES = {"true": True, "1": True, "false": False, "0": False}
_LOOKS_ALIKE = 0.85  # difflib ratio: two letters of a long flag may be wrong
_ABBREVIATED = "--spec"  # the family whose names are listed in full, so that a short form is known to be unambiguous
_LISTED_IN_FULL = "--speculative"  # and so that one more is known to be refused


@dataclass(frozen=True)
class Misspelling:
    """A flag that the engine does not know.

    Args:
        typed: as the user wrote it.
        meant: the flags that it looks like; more than one when it is a short form of several, none when it looks like
            none.
    """

    typed: str
    meant: tuple[str, ...]


@dataclass(frozen=True)
class ServerFlags:
    """What a user told a server about drafting; None where nothing was said. Names as in ``TreeConfig``.

    Args:
        algorithm: SGLang's ``--speculative-algorithm``, vLLM's ``method``.
        num_steps: SGLang's ``--speculative-num-steps``, vLLM's ``num_speculative_tokens``.
        target_path: of the model that is served.
        context_length: tokens of the longest sequence that the server will take.
        misspelled: flags that look like one of these and are none, and speculative ones that the engine has not.
        unrelated: words which change nothing in drafting.
        unknown: flags that were not looked up: the engine may have them or not.
    """

    algorithm: str | None = None
    draft_path: str | None = None
    target_path: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    threshold_single: float | None = None
    threshold_acc: float | None = None
    rejection_sampling: bool | None = None
    block_verification: bool | None = None
    draft_sample_method: str | None = None
    rejection_sample_method: str | None = None
    parallel_drafting: bool | None = None
    deterministic: bool | None = None
    adaptive: bool | None = None
    token_map: str | None = None
    draft_window: int | None = None
    context_length: int | None = None
    draft_context_length: int | None = None
    attention_backend: str | None = None
    decode_attention_backend: str | None = None
    draft_attention_backend: str | None = None
    page_size: int | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    misspelled: tuple[Misspelling, ...] = ()
    unrelated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def said(self) -> dict[str, object]:
        """The settings that the user gave."""
        lists = ("misspelled", "unrelated", "unknown")
        return {name: value for name, value in vars(self).items() if value is not None and name not in lists}


def parse_server_flags(engine: str, words: Sequence[str]) -> ServerFlags:
    """Read flags as they stand on a server's command line, or in a Python call.

    Takes ``--flag value``, ``--flag=value``, ``flag_name=value``, short forms of ``--speculative-...`` that fit one
    flag only (as argparse does), and vLLM's JSON. One quoted word with all of them inside is taken apart.

    Args:
        engine: ``"SGLang"`` or ``"vLLM"``; of other engines no flags are known, and all words are unrelated.
        words: in their order.

    Raises:
        Eagle3RefError: a flag without its value, or with one of another type.
    """
    dialect = DIALECTS.get(engine, Dialect(flags=()))
    values: dict[str, Any] = {}  # each of its setting's own type
    misspelled: list[Misspelling] = []
    unrelated: list[str] = []
    unknown: list[str] = []
    for name, value in _pairs(_split(words), dialect):
        known = _resolve(name, dialect)
        if isinstance(known, FlagName):
            values[known.setting] = _typed(known, name, value)
        elif isinstance(known, Misspelling):
            misspelled.append(known)
        elif name in dialect.json_flags:
            for key, inner in _json_settings(name, value).items():
                setting = _resolve_key(name, key, dialect)
                if isinstance(setting, FlagName):
                    values[setting.setting] = _typed(setting, f"{name} {key}", inner)
                elif isinstance(setting, Misspelling):
                    misspelled.append(setting)
                else:
                    unrelated.append(f"{name} {key}")
        else:
            is_unknown = dialect.flags and name.startswith("--") and "." not in name and name not in dialect.names
            (unknown if is_unknown else unrelated).append(name if value is None else f"{name} {value}")
    return ServerFlags(**values, misspelled=tuple(misspelled), unrelated=tuple(unrelated), unknown=tuple(unknown))


def _split(words: Sequence[str]) -> list[str]:
    """A word with blanks that begins like a flag is a whole command line in quotes."""
    split: list[str] = []
    for word in words:
        is_line = word.startswith("-") and any(blank in word.partition("=")[0] for blank in " \n")
        try:
            split += shlex.split(word) if is_line else [word]
        except ValueError as error:
            raise _bad_value("in quotes", word, f"whole words ({error})") from error
    return split


def _pairs(words: list[str], dialect: Dialect) -> Iterator[tuple[str, str | None]]:
    """(name, value) of every flag; a word that belongs to no flag stands alone."""
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("-"):
            name, has_value, value = word.rstrip(",").partition("=")
            in_python = has_value and name.isidentifier()
            yield (f"--{name.replace('_', '-')}", value.strip("'\"")) if in_python else (word, None)
            continue
        name, has_value, value = word.partition("=")
        if dialect.underscores and name.startswith("--"):
            name = name.replace("_", "-")
        known = _resolve(name, dialect)
        is_switch = isinstance(known, FlagName) and known.kind == "switch"
        if has_value:
            yield name, value
        elif not is_switch and i < len(words) and not _is_flag(words[i]):
            yield name, words[i]
            i += 1
        else:
            yield name, None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-")[:1].isdigit()


def _resolve(name: str, dialect: Dialect) -> FlagName | Misspelling | None:
    json_flag, _, key = name.partition(".")
    if key and json_flag in dialect.json_flags:
        return _resolve_key(json_flag, key.partition(".")[0].replace("-", "_"), dialect)
    exact = dialect.spelled(name)
    if exact is not None or name in dialect.names:
        return exact
    if name.startswith(_ABBREVIATED):
        longer = [full for full in dialect.names if full.startswith(name)]
        if len(longer) == 1:
            return dialect.spelled(longer[0])
        if longer:
            return Misspelling(name, tuple(longer))
    with_dashes = name.replace("_", "-")
    if dialect.spelled(with_dashes) is not None and name.startswith("--"):
        return Misspelling(name, (with_dashes,))
    close = difflib.get_close_matches(name, dialect.names, n=1, cutoff=_LOOKS_ALIKE) if name[:2] == "--" else []
    if close and dialect.spelled(close[0]) is not None:
        return Misspelling(name, tuple(close))
    return Misspelling(name, ()) if dialect.flags and name.startswith(_LISTED_IN_FULL) else None


def _resolve_key(flag: str, key: str, dialect: Dialect) -> FlagName | Misspelling | None:
    """A key of vLLM's JSON object."""
    if key in dialect.json_keys or key in dialect.json_others:
        return dialect.spelled(dialect.json_keys.get(key, ""))
    keys = (*dialect.json_keys, *dialect.json_others)
    return Misspelling(f"{flag} {key}", tuple(difflib.get_close_matches(key, keys, n=1, cutoff=_LOOKS_ALIKE)))


def _typed(flag: FlagName, name: str, value: object) -> object:
    text = None if value is None else str(value)
    if flag.kind == "switch":
        if text is None:
            return True
        if text.lower() in _SWITCH_VALUES:
            return _SWITCH_VALUES[text.lower()]
        raise _bad_value(name, text, "no value, or true or false")
    if text is None:
        raise _bad_value(name, "nothing after it", "a value")
    if flag.kind == "text":
        return text
    if flag.kind == "length":
        return _length(name, text)
    try:
        return int(text) if flag.kind == "count" else float(text)
    except ValueError as error:
        raise _bad_value(name, text, "an integer" if flag.kind == "count" else "a number") from error


def _length(name: str, text: str) -> int | None:
    """Tokens; None where vLLM is to choose (auto, -1). Its small letters are powers of 1000, its large ones of 1024."""
    if text in ("auto", "-1"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", text)
    if match is None:
        raise _bad_value(name, text, "an integer, such as 32768, 32k or 32K, or auto")
    digits, unit = match.groups()
    return int(float(digits) * (1000 if unit.islower() else 1024) ** " kmg".index(unit.lower() or " "))


def _json_settings(name: str, value: str | None) -> dict[str, object]:
    try:
        settings = json.loads(value or "")
    except ValueError as error:
        raise _bad_value(name, value or "nothing after it", "a JSON object, in single quotes for the shell") from error
    if not isinstance(settings, dict):
        raise _bad_value(name, str(value), "a JSON object")
    return {key.replace("-", "_"): inner for key, inner in settings.items() if inner is not None}


def _bad_value(name: str, found: str, expected: str) -> Eagle3RefError:
    action = "The server would refuse it as well. Correct the flag."
    return Eagle3RefError(f"reading the server flag {name}", found=found, expected=expected, action=action)

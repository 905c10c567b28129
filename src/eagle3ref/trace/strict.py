"""JSON objects into frozen dataclasses: every key known, every key there, every value of its type."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from eagle3ref.errors import Eagle3RefError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Keyed by the annotation as written, so a field of a kind that nobody checks fails at once.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_int,
    "float": lambda value: isinstance(value, float) or _is_int(value),
    "str | None": lambda value: value is None or isinstance(value, str),
    "int | None": lambda value: value is None or _is_int(value),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_is_int, value)),
    "dict[str, str]": lambda value: (
        isinstance(value, dict) and all(isinstance(text, str) for item in value.items() for text in item)
    ),
}


def check_types(record: DataclassInstance, doing: str) -> None:
    """Refuse a dataclass whose values are not of the types that its annotations promise.

    Fields that are dataclasses themselves check their own.

    Raises:
        Eagle3RefError: naming the first field that is wrong.
    """
    for field in fields(record):
        value, kind = getattr(record, field.name), str(field.type)
        right = type(value).__name__ == kind if kind[0].isupper() else _KINDS[kind](value)
        if not right:
            raise Eagle3RefError(
                doing,
                found=f"{field.name} = {value!r}",
                expected=f"{field.name} of type {kind}",
                action="Correct that value.",
            )


def parse_json(text: str | bytes, doing: str) -> Any:
    """The JSON value in ``text``.

    Raises:
        Eagle3RefError: the text is not JSON or not UTF-8.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Eagle3RefError(
            doing,
            found=f"text that is not JSON ({error})",
            expected="a JSON object",
            action="The file is damaged: restore it from a copy, or record the trace again in a new folder.",
        ) from error


def require_keys(cls: type[DataclassInstance], data: Any, doing: str) -> dict[str, Any]:
    """``data``, when it is an object whose keys are exactly the fields of ``cls``.

    Raises:
        Eagle3RefError: not an object, a key missing, or a key that is not known.
    """
    names = {field.name for field in fields(cls)}
    if isinstance(data, dict) and set(data) == names:
        return data
    raise Eagle3RefError(
        doing,
        found=f"the keys {sorted(data)}" if isinstance(data, dict) else f"a {type(data).__name__}",
        expected=f"an object with exactly the keys {sorted(names)}",
        action="Add what is missing, and remove what is not known.",
    )


def from_dict(cls: type[Record], data: Any, doing: str) -> Record:
    """The dataclass ``cls`` from an object with exactly its fields as keys.

    Raises:
        Eagle3RefError: as ``require_keys``, or as ``cls`` itself refuses its values.
    """
    return cls(**require_keys(cls, data, doing))

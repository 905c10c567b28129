"""Typed reading of a config.json: every missing or ill-typed key is an error that names the file and the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from eagle3ref.errors import Eagle3RefError

_REQUIRED = object()
_LARGEST = 1e300


class JsonFields:
    """A JSON object with typed access.

    Args:
        values: the decoded object.
        where: what it is, for messages, e.g. ``"my-draft/config.json"``.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    @classmethod
    def read(cls, path: Path) -> JsonFields:
        """Read a JSON object from a file.

        Raises:
            Eagle3RefError: the file is missing, is not JSON, or holds no object.
        """
        doing = f"reading {path}"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Eagle3RefError(
                doing,
                found=error.strerror or "an unreadable file",
                expected="a config.json",
                action="Give the folder that holds config.json and the weights.",
            ) from error
        except (ValueError, RecursionError) as error:
            raise Eagle3RefError(
                doing, found=f"no JSON ({error})", expected="a JSON object", action="Download the file again."
            ) from error
        if not isinstance(values, dict):
            raise Eagle3RefError(
                doing, found=type(values).__name__, expected="a JSON object", action="Check the file's contents."
            )
        return cls(values, str(path))

    @property
    def architecture(self) -> str:
        """``architectures[0]``, or "" when there is none."""
        names = self.values.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def size(self, key: str, default: Any = _REQUIRED, *, lowest: int = 1, highest: int = 2**31 - 1) -> int:
        """The integer under ``key``, a width or a count within these bounds."""
        value = int(self._typed(key, default, (int,), "an integer"))
        if not lowest <= value <= highest:
            self._refuse(key, f"an integer from {lowest} to {highest}")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """The number under ``key``; JSON as Python reads it also knows NaN and Infinity, which are refused."""
        value = self._typed(key, default, (int, float), "a number")
        if not abs(value) < _LARGEST:
            self._refuse(key, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """The boolean under ``key``; null counts as absent."""
        return bool(self._typed(key, default, (bool,), "true or false"))

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """The string under ``key``."""
        return str(self._typed(key, default, (str,), "a string"))

    def optional_size(self, key: str) -> int | None:
        """The size under ``key``, or None when it is absent or null."""
        return None if self.values.get(key) is None else self.size(key)

    def optional_number(self, key: str) -> float | None:
        """The number under ``key``, or None when it is absent or null."""
        return None if self.values.get(key) is None else self.number(key)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """The integer list under ``key`` (a single integer counts as a list of one); None when absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and abs(item) < 2**31 for item in values):
            self._refuse(key, f"a list of integers within {2**31 - 1} of 0")
        return tuple(values)

    def require(self, plain: Mapping[str, Any], meaning: str, action: str) -> None:
        """Refuse a key that is there with another value than the plain one; absent and null are plain.

        Args:
            plain: the value of each key that means nothing unusual.
            meaning: what these values describe, e.g. ``"the plain EAGLE-3 head"``.
            action: what another value would do.

        Raises:
            Eagle3RefError: names the first such key.
        """
        for key, expected in plain.items():
            value = self.values.get(key)
            if value is not None and value != expected:
                raise Eagle3RefError(
                    f"reading {self.where}",
                    found=f"{key} = {value!r}",
                    expected=f"{key} = {expected!r}, {meaning}",
                    action=action,
                )

    def object(self, key: str) -> JsonFields | None:
        """The object under ``key``; None when absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse(key, "an object")
        return JsonFields(value, f"{self.where}: {key}")

    def _typed(self, key: str, default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                self._refuse(key, expected)
            return default
        is_stray_bool = isinstance(value, bool) and bool not in kinds
        if is_stray_bool or not isinstance(value, kinds):
            self._refuse(key, expected)
        return value

    def _refuse(self, key: str, expected: str) -> NoReturn:
        found = repr(self.values[key]) if key in self.values else "no such key"
        raise Eagle3RefError(
            f"reading {key!r} of {self.where}", found=found, expected=expected, action="Correct the file."
        )

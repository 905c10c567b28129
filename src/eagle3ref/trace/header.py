"""``trace.json``: which target, which layers, how it was sampled, by what."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import torch

from eagle3ref.config import TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.strict import check_types, from_dict, parse_json, require_keys

SCHEMA_VERSION = 1
_DOING = "checking a trace header (trace.json)"
_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def _refuse(found: str, expected: str) -> NoReturn:
    raise Eagle3RefError(_DOING, found=found, expected=expected, action="Correct that value.")


def _check_version(version: Any, doing: str) -> None:
    if version != SCHEMA_VERSION:
        raise Eagle3RefError(
            doing,
            found=f"schema_version {version!r}",
            expected=f"{SCHEMA_VERSION}, the one that this eagle3ref knows",
            action="Read the trace with the eagle3ref version that wrote it, or record it again.",
        )


@dataclass(frozen=True)
class TargetIdentity:
    """The model that was recorded.

    Args:
        name: what people call it, e.g. ``"Kimi-K2.5"``.
        path: absolute folder, or hub name. Part of the identity: fine-tunes share a config.json.
        model_type: ``model_type`` of config.json.
        num_layers, hidden_size, vocab_size: of the language model.
        config_sha256: of the bytes of config.json.

    Raises:
        Eagle3RefError: a value of the wrong type, or a size that is not positive.
    """

    name: str
    path: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    config_sha256: str

    def __post_init__(self) -> None:
        check_types(self, _DOING)
        if min(self.num_layers, self.hidden_size, self.vocab_size) < 1:
            sizes = f"{self.num_layers}, {self.hidden_size}, {self.vocab_size}"
            _refuse(f"num_layers, hidden_size, vocab_size = {sizes}", "three positive numbers")

    @classmethod
    def of(cls, config: TargetConfig) -> TargetIdentity:
        """The identity of a target that is at hand."""
        return cls(
            name=config.name,
            path=config.path,
            model_type=config.model_type,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            config_sha256=config.config_sha256,
        )


@dataclass(frozen=True)
class RecordedSampling:
    """How the recorded tokens were chosen.

    Args:
        temperature: 0 is greedy.
        top_p: 1 keeps everything.
        top_k: 0 keeps everything.
        seed: None when the engine does not tell it.
        max_new_tokens: limit of each generated answer; None when it is not known, or answers were given.

    Raises:
        Eagle3RefError: a value of the wrong type or out of its range.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        check_types(self, _DOING)
        if not (0 <= self.temperature < float("inf") and 0 < self.top_p <= 1 and self.top_k >= 0):
            found = f"temperature {self.temperature}, top_p {self.top_p}, top_k {self.top_k}"
            _refuse(found, "temperature >= 0 (0 = greedy), 0 < top_p <= 1, top_k >= 0 (0 = all)")


@dataclass(frozen=True)
class TraceHeader:
    """What every sequence of a trace has in common.

    Args:
        target: the model that was recorded.
        tokenizer_sha256: None when the prompts came as token ids.
        capture_points: ascending; ``i`` is the residual stream entering layer ``i`` (0 = embedding output,
            ``num_layers`` = before the final norm).
        dtype: of all hidden states: ``"float64"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        sampling: how the tokens were chosen.
        engine: what ran the target, with its version, e.g. ``"sglang 0.5.23"``.
        provenance: free text by key (versions, date, command); never compared.
        schema_version: of this format.

    Raises:
        Eagle3RefError: a value of the wrong type or out of its range.
    """

    target: TargetIdentity
    tokenizer_sha256: str | None
    capture_points: tuple[int, ...]
    dtype: str
    sampling: RecordedSampling
    engine: str
    provenance: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        _check_version(self.schema_version, _DOING)
        check_types(self, _DOING)
        points, last = self.capture_points, self.target.num_layers
        if not points or list(points) != sorted(set(points)) or points[0] < 0 or points[-1] > last:
            _refuse(f"capture_points {list(points)}", f"different layers in ascending order, from 0 to {last}")
        if self.dtype not in _DTYPES:
            _refuse(f"dtype {self.dtype!r}", f"one of {', '.join(_DTYPES)}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of all hidden states, as torch names it."""
        return _DTYPES[self.dtype]

    def to_json(self) -> str:
        """The text of ``trace.json``."""
        return json.dumps({"schema_version": self.schema_version, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, doing: str = _DOING) -> TraceHeader:
        """The header that ``to_json`` wrote.

        Raises:
            Eagle3RefError: not JSON, another schema version, a key missing or unknown, or a value out of its range.
        """
        data = parse_json(text, doing)
        # Before the keys: those of another version may well be other ones, and the version is the news.
        _check_version(data.get("schema_version") if isinstance(data, dict) else None, doing)
        keys = require_keys(cls, data, doing)
        points = keys["capture_points"]
        nested = {
            "target": from_dict(TargetIdentity, keys["target"], doing),
            "sampling": from_dict(RecordedSampling, keys["sampling"], doing),
            "capture_points": tuple(points) if isinstance(points, list) else points,
        }
        return cls(**{**keys, **nested})

    def differences(self, other: TraceHeader) -> tuple[str, ...]:
        """Where ``other`` differs from this recorded header, provenance apart: ``"engine: 'a' recorded, 'b' now"``."""
        recorded, now = _flat(asdict(self)), _flat(asdict(other))
        return tuple(
            f"{name}: {recorded[name]!r} recorded, {now[name]!r} now"
            for name in recorded
            if recorded[name] != now[name]
        )


def _flat(header: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in header.items():
        if name in ("target", "sampling"):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        elif name != "provenance":
            flat[name] = value
    return flat

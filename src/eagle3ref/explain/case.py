"""All that is known before a server starts: a draft's files, a target's config, an engine, the flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3ref.config import DraftConfig, MLAConfig, TargetConfig
from eagle3ref.config.draft_speculators import flatten_speculators
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.draft.checkpoint import open_draft
from eagle3ref.engines import PROFILES, EngineProfile
from eagle3ref.engines.profile import DraftAttention, Source
from eagle3ref.explain.flags import ServerFlags
from eagle3ref.weights import Weights


@dataclass(frozen=True)
class DraftFiles:
    """A draft folder: its config, as written and as understood, and its tensors by name and shape.

    Args:
        folder: config.json and the weights.
        config: config.json, understood.
        keys: config.json as it stands there, speculators' nested layer settings beside the others.
        weights: the tensors; only small ones are ever read.
    """

    folder: Path
    config: DraftConfig
    keys: Mapping[str, Any]
    weights: Weights

    @classmethod
    def open(cls, folder: str | Path) -> DraftFiles:
        """Read config.json and the headers of the weights.

        Raises:
            Eagle3RefError: no EAGLE-3 draft, or no readable weights.
        """
        config, weights = open_draft(folder)
        keys = flatten_speculators(JsonFields.read(Path(folder) / "config.json")).values
        return cls(Path(folder), config, keys, weights)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by its name in the file."""
        return {name: self.weights.shape(name) for name in sorted(self.weights.names)}

    @property
    def attention(self) -> DraftAttention:
        """By which of an engine's model classes the draft is served."""
        return "mla" if isinstance(self.config.attention, MLAConfig) else "gqa"

    def ending(self, name: str) -> str | None:
        """The tensor of that name, whatever prefix it has in the file; None if there is none."""
        return next((stored for stored in self.shapes if stored == name or stored.endswith(f".{name}")), None)

    def read(self, name: str) -> Tensor | None:
        """The values of a small tensor, whatever prefix it has in the file; None if there is none."""
        stored = self.ending(name)
        return None if stored is None else self.weights.read(stored)


@dataclass(frozen=True)
class TargetFacts:
    """What is known of a target without its weights.

    Args:
        config: sizes and model_type; its ``path`` may lead to weights, or nowhere.
        architecture: ``architectures[0]``, which engines choose defaults by; "" if there is no file.
    """

    config: TargetConfig
    architecture: str

    @classmethod
    def of(cls, target: str | Path | TargetConfig) -> TargetFacts:
        """From a folder with config.json, or from a config that was read before.

        Raises:
            Eagle3RefError: no readable config.json in that folder.
        """
        config = target if isinstance(target, TargetConfig) else TargetConfig.from_folder(target)
        file = Path(config.path) / "config.json"
        names = JsonFields.read(file).values.get("architectures") if config.path and file.is_file() else None
        return cls(config, str(names[0]) if isinstance(names, list) and names else "")


@dataclass(frozen=True)
class Case:
    """One server that could be started.

    Args:
        profile: of the engine's version.
        flags: as typed.
        draft: its files.
        target: what is known of it.
        prompt_length: tokens of the longest sequence that is expected, if the user said so.
        capture_points: what the draft was trained on, if the user said so.
    """

    profile: EngineProfile
    flags: ServerFlags
    draft: DraftFiles
    target: TargetFacts
    prompt_length: int | None = None
    capture_points: tuple[int, ...] | None = None

    def source(self, field: str) -> Source:
        """Who says what the profile has in a field.

        A field that lists values by target or by the draft's attention was stated when this one got its value; the
        field's own source is that of the last change to any of them.
        """
        stating = self.profile
        for earlier in reversed(_history_before(self.profile)):
            if self._value(earlier, field) != self._value(self.profile, field):
                break
            stating = earlier
        return stating.sources[field]

    def _value(self, profile: EngineProfile, field: str) -> object:
        """Of the field, what applies here."""
        value = getattr(profile, field)
        if not isinstance(value, Mapping):
            return value
        keys = (self.target.config.model_type, self.target.architecture, self.draft.attention, "*")
        return next((value[key] for key in keys if key in value), None)


def _history_before(profile: EngineProfile) -> list[EngineProfile]:
    history = list(PROFILES[profile.package])
    return history[: history.index(profile)]

"""All that is known before a server starts: a draft's files, a target's config, an engine, the flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3ref.config import AttentionKind, DraftConfig, TargetConfig
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.config.draft_speculators import flatten_speculators
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.draft.checkpoint import open_draft
from eagle3ref.engines import PROFILES, EngineProfile
from eagle3ref.engines.profile import Source
from eagle3ref.explain.flags import ServerFlags, parse_server_flags
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

    @cached_property
    def written_ids(self) -> dict[str, tuple[int, ...]]:
        """The lists of layer ids in config.json, by dotted key; an engine looks at some of these keys."""
        fields = JsonFields(self.keys, str(self.folder / "config.json"))
        nested = fields.object("eagle_config")
        found = {CAPTURE_IDS_KEY: fields.integers(CAPTURE_IDS_KEY)}
        if nested is not None:
            found[f"eagle_config.{CAPTURE_IDS_KEY}"] = nested.integers(CAPTURE_IDS_KEY)
        return {key: ids for key, ids in found.items() if ids is not None}

    @cached_property
    def unsaid_vocabulary(self) -> int | None:
        """Rows of the head and d2t, where config.json gives no ``draft_vocab_size`` and they are not ``vocab_size``."""
        rows = {self.shapes[name][0] for name in map(self.ending, ("lm_head.weight", "d2t")) if name is not None}
        is_unsaid = self.config.shares_target_lm_head and len(rows) == 1 and rows != {self.config.vocab_size}
        return rows.pop() if is_unsaid else None

    @property
    def names_quantization(self) -> bool:
        """Whether the files tell an engine how the weights are quantized; a null ``quant_algo`` says they are not."""
        file = self.folder / "hf_quant_config.json"
        modelopt = JsonFields.read(file).object("quantization") if file.is_file() else None
        return bool(self.keys.get("quantization_config") or (modelopt and modelopt.values.get("quant_algo")))

    @property
    def attention_kind(self) -> AttentionKind:
        """By which of an engine's model classes the draft is served."""
        return self.config.attention.kind

    def ending(self, name: str) -> str | None:
        """The tensor of that name, whatever prefix it has in the file; None if there is none."""
        return next((stored for stored in self.shapes if stored == name or stored.endswith(f".{name}")), None)

    def read(self, name: str) -> Tensor | None:
        """The values of a small tensor, whatever prefix it has in the file; None if there is none."""
        stored = self.ending(name)
        return None if stored is None else self.weights.read(stored)


@dataclass(frozen=True)
class Case:
    """One server that could be started.

    Args:
        profile: of the engine's version.
        release: what the user asked for, e.g. ``"vllm==0.20.0"``; one of the profile's ``versions``.
        flags: as typed.
        draft: its files.
        target: its config; its ``path`` may lead to weights, or nowhere.
        target_folder: as the user wrote it, for messages; the target's name if there is no folder.
        prompt_length: tokens of the longest sequence that is expected, if the user said so.
        capture_points: what the draft was trained on, if the user said so.
    """

    profile: EngineProfile
    release: str
    flags: ServerFlags
    draft: DraftFiles
    target: TargetConfig
    target_folder: str
    prompt_length: int | None = None
    capture_points: tuple[int, ...] | None = None

    @property
    def engine(self) -> str:
        """The release for people, with its profile's range where that was read in another release."""
        is_read = self.release == self.profile.name
        return self.release if is_read else f"{self.release} (profile {self.profile.versions})"

    @property
    def sampled_options(self) -> tuple[str, ...]:
        """The settings among the flags that change the rule at temperature > 0, as the profile writes them."""
        found = []
        for setting in self.profile.sampled_options:
            words = ["--speculative-config", f"{{{setting}}}"] if setting.startswith('"') else setting.split()
            wanted = parse_server_flags(self.profile.engine, words).said
            if wanted and wanted.items() <= self.flags.said.items():
                found.append(setting)
        return tuple(found)

    def source(self, field: str) -> Source:
        """Who says what the profile has in a field.

        A field that lists values by target, by the draft's attention or by a setting was stated when this one got its
        value; the field's own source is that of the last change to any of them.
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
        draft_or_target = (self.target.model_type, self.target.architecture, self.draft.attention_kind, "*")
        keys = self.sampled_options[::-1] if field == "sampled_options" else draft_or_target
        return next((value[key] for key in keys if key in value), None)


def _history_before(profile: EngineProfile) -> list[EngineProfile]:
    history = list(PROFILES[profile.package])
    return history[: history.index(profile)]

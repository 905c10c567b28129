"""What a draft folder holds, and what is odd about it; with or without its target."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eagle3ref.config import DraftConfig
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.draft import DraftWarning, Eagle3Draft, load_draft
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.draft.checkpoint import open_draft
from eagle3ref.draft.tensor_names import plain_names
from eagle3ref.draft.vocab import mapping_warnings, read_target_ids
from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection.corpus import Corpus
from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.health import Health, check_health
from eagle3ref.inspection.stored import StoredDraft
from eagle3ref.inspection.tensors import TensorGroup, tensor_groups
from eagle3ref.inspection.variant import network_variant
from eagle3ref.target import shared_weights
from eagle3ref.weights import Weights


@dataclass(frozen=True)
class DraftInspection:
    """A draft checkpoint.

    Args:
        path: its folder.
        config: its settings.
        tensors: what is stored.
        variant: in what its network differs from the plain EAGLE-3 head; None when two tensors have one name.
        mapped_ids: int64 [Vd], the target token of each draft token; None when the map cannot be read.
        origins: where capture points, embedding and head come from, as far as that is known.
        oddities: what ``load_draft`` warns of; it can be loaded and still deserves a look.
        health: what the weights themselves say; None when their names cannot be told apart.
        unchecked: what only the target could tell; empty when the draft was loaded in full.
        problem: why the draft cannot be used at all; None when it can.
    """

    path: str
    config: DraftConfig
    tensors: tuple[TensorGroup, ...]
    variant: tuple[str, ...] | None
    mapped_ids: Tensor | None
    origins: Mapping[str, str]
    oddities: tuple[str, ...]
    health: Health | None
    unchecked: tuple[str, ...]
    problem: Eagle3RefError | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is odd about the weights, faults first; what ``problem`` says already is left out."""
        found = () if self.health is None else self.health.findings
        said = "" if self.problem is None else self.problem.found
        return tuple(finding for finding in found if finding.tensor not in said)

    @property
    def is_faulty(self) -> bool:
        """Whether the draft cannot work as trained, although it may load."""
        return any(finding.is_fault for finding in self.findings)


def inspect_draft(
    folder: str | Path,
    target: str | Path | None = None,
    capture_points: Sequence[int] | None = None,
    corpus: str | Path | None = None,
) -> DraftInspection:
    """Look at a draft; what is wrong with its contents is told in the result, not raised.

    Args:
        folder: config.json and the weights.
        target: the target's folder, which lets every check of ``load_draft`` run, and embedding and head be compared.
        capture_points: what the draft was trained on, when its files do not say so.
        corpus: a trace, or prompts as ``capture`` reads them, to hold against the draft's vocabulary. A trace also
            has states to run fc on.

    Raises:
        Eagle3RefError: no readable config.json of an EAGLE-3 draft, no readable weights, or no readable corpus.
    """
    config, weights = open_draft(folder)
    counted = None if corpus is None else Corpus.read(corpus, target or folder)
    ids: Tensor | None = None
    variant: tuple[str, ...] | None = None
    origins: dict[str, str] = {}
    oddities: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    draft = health = problem = None
    try:
        names = plain_names(weights.names, str(folder))
        variant = network_variant(config, names)
        is_placed = capture_points is not None or config.capture_ids is not None
        needs = () if target is not None else _needs_of_target(config, names, is_placed)
        if needs:
            origins = _origins_alone(config, weights, needs, capture_points, is_placed)
        ids = read_target_ids(config, weights.read(names["d2t"]) if "d2t" in names else None, str(folder))
        if needs and "d2t" in names and "lm_head.weight" in names:
            parts = {name: weights.read(names[name]) for name in ("d2t", "lm_head.weight", "t2d") if name in names}
            head = parts["lm_head.weight"]
            oddities = tuple(mapping_warnings(parts["d2t"], ids, parts.get("t2d"), config.vocab_size, head))
        if not needs:
            draft = _loaded(folder, target, capture_points)
            origins, oddities = draft.origins, tuple(draft.warnings)
    except Eagle3RefError as error:
        problem = error
    try:
        names = plain_names(weights.names, str(folder))
        stored = StoredDraft(weights, names, JsonFields.read(Path(folder) / "config.json"))
        shared = None if target is None else shared_weights(target)
        health = check_health(stored, config, ids, draft=draft, target=shared, corpus=counted)
    except Eagle3RefError as error:
        problem = problem or error
    groups = tensor_groups(weights)
    return DraftInspection(str(folder), config, groups, variant, ids, origins, oddities, health, needs, problem)


def is_draft(weights: Weights) -> bool:
    """Whether a checkpoint has EAGLE-3's fusing projection; some architecture names are used for both."""
    return any(_is_fc(name) for name in weights.names)


def _is_fc(stored: str) -> bool:
    return "fc.weight" in plain_names([stored], "")


def _loaded(folder: str | Path, target: str | Path | None, capture_points: Sequence[int] | None) -> Eagle3Draft:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DraftWarning)  # the draft keeps them
        return load_draft(folder, target=target, capture_points=capture_points)


def _needs_of_target(config: DraftConfig, names: Collection[str], is_placed: bool) -> tuple[str, ...]:
    has_head = "lm_head.weight" in names or config.tie_word_embeddings
    needs = {
        "the embedding: the draft brings none": "embed_tokens.weight" not in names,
        "the lm_head: the draft brings none": not has_head,
        "the number of layers: config.json names no capture ids, and the default depends on it": not is_placed,
    }
    return tuple(need for need, is_needed in needs.items() if is_needed)


def _origins_alone(
    config: DraftConfig,
    weights: Weights,
    needs: tuple[str, ...],
    capture_points: Sequence[int] | None,
    is_placed: bool,
) -> dict[str, str]:
    origins = {"family": f"{config.family}: {config.family_mark}"}
    if is_placed:
        points, how = resolve_capture_points(config, None, capture_points, str(weights.folder))
        origins["capture points"] = f"{points}, {how}"
    for name in ("embedding", "lm_head"):
        if not any(need.startswith(f"the {name}") for need in needs):
            origins[name] = "the draft's own"
    return origins

"""The health check of a draft's weights: everything that can be told without running it on a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from eagle3ref.config import DraftConfig
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection.corpus import Corpus, Coverage, check_coverage, measure_coverage
from eagle3ref.inspection.fc_scale import FcScale, check_fc, measure_fc
from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.initialization import looks_initialised
from eagle3ref.inspection.rows import EqualRows, check_head_rows, equal_rows
from eagle3ref.inspection.stored import StoredDraft
from eagle3ref.inspection.values import check_values
from eagle3ref.inspection.versus_target import RowComparison, check_embedding, check_head_order, compare_rows
from eagle3ref.inspection.vocabulary import check_vocabulary
from eagle3ref.target import SharedWeights

_FC, _HEAD, _EMBEDDING = "fc.weight", "lm_head.weight", "embed_tokens.weight"


@dataclass(frozen=True)
class Health:
    """What was measured of a draft's weights, and what is odd about it.

    Args:
        findings: faults first.
        fc: scale of fc's output; None if it holds NaN or has another shape than config.json says.
        head_rows: equal rows of the draft's own head; None without one.
        head: that head beside the target's; None without one, without a target, or at another width.
        embedding: the draft's own embedding beside the target's; None likewise.
        coverage: of a corpus; None without one, or with a map that cannot be read.
    """

    findings: tuple[Finding, ...]
    fc: FcScale | None
    head_rows: EqualRows | None
    head: RowComparison | None
    embedding: RowComparison | None
    coverage: Coverage | None


def check_health(
    stored: StoredDraft,
    config: DraftConfig,
    ids: Tensor | None,
    *,
    draft: Eagle3Draft | None = None,
    target: SharedWeights | None = None,
    corpus: Corpus | None = None,
) -> Health:
    """Look at every tensor, a block of rows at a time; beside the mapped files that takes some tens of MB.

    Args:
        stored: the draft's tensors.
        config: its settings.
        ids: int64 [Vd], the target token of each draft token; None when the map cannot be read.
        draft: the loaded draft, to run fc on the states of a trace.
        target: its embedding and head, to compare with.
        corpus: tokens to hold against the draft's vocabulary.

    Raises:
        Eagle3RefError: packed weights, or a corpus of another target.
    """
    findings = list(check_values(stored))
    broken = {finding.tensor for finding in findings}
    fc = _fc(stored, config, draft, corpus) if _FC not in broken else None
    head = stored.tensor(_HEAD) if _HEAD in stored and _HEAD not in broken else None
    embedding = stored.tensor(_EMBEDDING) if _EMBEDDING in stored and _EMBEDDING not in broken else None
    is_reduced = config.draft_vocab_size < config.vocab_size
    rows = None if head is None else equal_rows(head)
    target_head = None if target is None else _plain(target.lm_head)
    beside_head = _beside_head(head, ids, target_head)
    beside_embedding = _beside_embedding(embedding, None if target is None else _plain(target.embedding))
    coverage = None if corpus is None or ids is None else measure_coverage(corpus, ids, config.vocab_size)
    if fc is not None:
        findings += check_fc(fc)
    if rows is not None:
        findings += check_head_rows(rows, is_reduced)
    if ids is not None and "d2t" in stored:
        findings += check_vocabulary(stored.raw("d2t"), ids, config.vocab_size)
    if target_head is not None and head is not None and ids is not None and beside_head is not None:
        findings += check_head_order(head, target_head, ids)
    if beside_embedding is not None:
        findings += check_embedding(beside_embedding)
    if coverage is not None:
        findings += check_coverage(coverage)
    findings += _untrained(head, embedding)
    return Health(
        tuple(sorted(findings, key=lambda finding: not finding.is_fault)),
        fc,
        rows,
        beside_head,
        beside_embedding,
        coverage,
    )


def _fc(stored: StoredDraft, config: DraftConfig, draft: Eagle3Draft | None, corpus: Corpus | None) -> FcScale | None:
    wanted = (config.hidden_size, config.num_aux_hidden_states * config.target_hidden_size)
    if _FC not in stored or stored.weights.shape(stored.names[_FC]) != wanted:
        return None
    return measure_fc(stored, config, draft, None if corpus is None else corpus.trace)


def _plain(matrix: Callable[[], Tensor]) -> Tensor | None:
    """A matrix of the target; None if it has none of a known name, or not as plain numbers."""
    try:
        found = matrix()
    except Eagle3RefError:
        return None
    return found if found.is_floating_point() and found.element_size() > 1 else None


def _beside_head(head: Tensor | None, ids: Tensor | None, theirs: Tensor | None) -> RowComparison | None:
    if head is None or ids is None or theirs is None or len(head) != len(ids):
        return None
    fits = theirs.shape[1] == head.shape[1] and int(ids.max()) < len(theirs)
    return compare_rows(head, theirs, ids) if fits else None


def _beside_embedding(embedding: Tensor | None, theirs: Tensor | None) -> RowComparison | None:
    if embedding is None or theirs is None or theirs.shape != embedding.shape:
        return None
    return compare_rows(embedding, theirs)


def _untrained(head: Tensor | None, embedding: Tensor | None) -> Iterator[Finding]:
    if head is not None and looks_initialised(head):
        yield Finding(
            _HEAD,
            "looks random: its rows, its columns and its mean row are as an initializer draws them",
            "training leaves the rows of common tokens longer than others; this head proposes tokens by chance.",
            "Export the draft with the head that it was trained with, or without one if it shares the target's.",
            True,
        )
    if embedding is not None and looks_initialised(embedding):
        yield Finding(
            _EMBEDDING,
            "looks random: its rows, its columns and its mean row are as an initializer draws them",
            "SGLang puts the target's in its place and runs well, vLLM keeps it and does not.",
            "Leave it out of the file, or write the target's.",
            False,
        )

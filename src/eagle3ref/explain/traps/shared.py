"""Traps in what a draft may share with its target: head, embedding and vocabulary."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from eagle3ref.draft.vocab import target_ids
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.trap import Severity, Trap, read_in
from eagle3ref.explain.wiring import Wiring


def missing_head(wiring: Wiring) -> Iterator[Trap]:
    """No lm_head in the file, and nobody who supplies the one that it needs."""
    case, config = wiring.case, wiring.case.draft.config
    if wiring.lm_head == "random":
        yield Trap(
            "missing-lm-head",
            "silent, costs acceptance",
            f"no lm_head.weight in the file, and draft_vocab_size = {config.draft_vocab_size} asks for one",
            f"no error; {case.profile.missing_lm_head or 'the head stays uninitialised'}: accept len 1.00",
            "Export the draft with its head; if it shares the target's, write draft_vocab_size null.",
            case.source("missing_lm_head"),
        )
    elif wiring.lm_head == "refused":
        yield Trap(
            "missing-lm-head",
            "fails at start",
            "no lm_head.weight in the file",
            case.profile.missing_lm_head or "the engine refuses it",
            "Export the draft with its head.",
            case.source("missing_lm_head"),
        )
    elif wiring.lm_head == "target" and wiring.captures and config.draft_vocab_size < config.vocab_size:
        yield Trap(
            "missing-lm-head",
            "fails at first forward",
            f"no lm_head.weight in the file; the target's has {config.vocab_size} rows, not {config.draft_vocab_size}",
            "a shape error: logits of the whole vocabulary are put in the places of a part of it",
            "Export the draft with its head.",
            case.source("missing_lm_head"),
        )


def unsaid_vocabulary(wiring: Wiring) -> Iterator[Trap]:
    """A reduced vocabulary in the tensors, of which config.json says nothing."""
    case = wiring.case
    rows, engine, keys = case.draft.unsaid_vocabulary, case.profile.engine, case.draft.keys
    if rows is None:
        return
    stored = " and ".join(name for name in ("lm_head", "d2t") if case.draft.ending(name.replace("head", "head.weight")))
    severity: Severity = "fails at start"
    seen = "an assertion while the weights are loaded: the head has the rows of the whole vocabulary"
    is_absent = "draft_vocab_size" not in keys
    if engine == "SGLang" and is_absent and case.draft.attention_kind == "gqa":
        seen = "AttributeError: the config has no attribute draft_vocab_size"
    elif engine == "SGLang":
        severity = "silent, costs acceptance"
        seen = f"the target's head is used, and its ids are looked up in {rows} rows: wrong tokens, or an index error"
    yield Trap(
        "unsaid-vocabulary",
        severity,
        f"draft_vocab_size is {'not in config.json' if is_absent else 'null'}, and {stored} have {rows} rows",
        seen,
        f"Write draft_vocab_size {rows} ({stored} have {rows} rows).",
        read_in(engine, "the draft's model class and its load_weights"),
    )


def replaced_head(wiring: Wiring) -> Iterator[Trap]:
    """A head of its own that the engine replaces by the target's."""
    case = wiring.case
    draft = case.draft
    said = "is null" if "draft_vocab_size" in draft.keys else "is not in config.json"
    is_replaced = wiring.lm_head == "target" and wiring.captures and draft.ending("lm_head.weight") is not None
    if is_replaced and draft.unsaid_vocabulary is None:
        yield Trap(
            "replaced-lm-head",
            "silent, costs acceptance",
            f"the file has an lm_head, but draft_vocab_size {said}, which means: use the target's",
            "no error; unless the two are equal, fewer drafts are accepted",
            f"Write draft_vocab_size {case.draft.config.vocab_size}.",
            case.source("lm_head"),
        )


def replaced_embedding(wiring: Wiring) -> Iterator[Trap]:
    """An embedding of its own that the engine replaces by the target's."""
    case = wiring.case
    if wiring.embedding != "target" or case.draft.ending("embed_tokens.weight") is None or wiring.same_embedding:
        return
    differs = wiring.same_embedding is False
    yield Trap(
        "replaced-embedding",
        "silent, costs acceptance" if differs else "harmless",
        "the draft brings an embedding, and the target's is used instead"
        + ("; the two differ" if differs else "; whether they differ was not checked, the files are large"),
        "no error"
        + ("; fewer drafts are accepted" if differs else "; nothing, if the draft was trained with the target's"),
        shlex.join(["eagle3ref", "inspect", f"{case.draft.folder}", "--target", case.target_folder])
        + " compares the two.",
        case.source("embedding"),
    )


def wrong_vocabulary_map(wiring: Wiring) -> Iterator[Trap]:
    """A d2t that does not say, draft id by draft id, which target id is meant."""
    case = wiring.case
    config, d2t = case.draft.config, case.draft.read("d2t")
    size = case.draft.unsaid_vocabulary or config.draft_vocab_size
    source = read_in(case.profile.engine, "the d2t of the draft's load_weights")
    if d2t is None:
        if size < config.vocab_size:
            yield Trap(
                "missing-d2t",
                "silent, costs acceptance",
                f"no d2t, but draft_vocab_size {size} is smaller than vocab_size {config.vocab_size}",
                "no error; draft ids are taken for target ids, accept len about 1",
                "Export the draft with its vocabulary map.",
                source,
            )
        return
    try:
        ids = target_ids(d2t, config.vocab_size, case.draft.folder.name)
    except Eagle3RefError as error:
        seen = "wrong tokens are proposed, or an index is out of bounds at the first draft; accept len about 1"
        yield Trap("wrong-d2t", "silent, costs acceptance", error.found, seen, error.action, source)
        return
    if len(ids) != size or (size < config.vocab_size and not bool(d2t.any())):
        found = f"{len(ids)} entries for a draft vocabulary of {size}" if len(ids) != size else "nothing but zeros"
        seen = (
            f"no error; only target ids below {len(ids)} are proposed"
            if len(ids) == size
            else "a shape error, or wrong tokens"
        )
        fix = "Export the vocabulary map again; it looks as if it was never filled."
        yield Trap("wrong-d2t", "silent, costs acceptance", f"d2t holds {found}", seen, fix, source)

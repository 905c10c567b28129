"""Traps in the weights: tensors that are dropped, missing, replaced, or of a kind that the engine does not run."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.draft.vocab import target_ids
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_SHOWN = 4
_SCALES = ("weight_scale", "weight_scale_inv")


def unsupported_architecture(wiring: Wiring) -> Iterator[Trap]:
    """A draft class that the engine does not have."""
    case = wiring.case
    known = case.profile.architectures.get(case.draft.attention, ())
    name = case.draft.config.architecture
    if known and name not in known:
        yield Trap(
            "unsupported-architecture",
            "fails at start",
            f"architectures = {name!r}",
            f"{case.profile.engine} serves {', '.join(known)}",
            f"Convert it: eagle3ref export {case.draft.folder.name} --format {case.profile.engine.lower()}",
            case.source("architectures"),
        )


def too_many_layers(wiring: Wiring) -> Iterator[Trap]:
    """More decoder layers than the engine's class has, or than the file."""
    case = wiring.case
    tensors, most = wiring.tensors, case.profile.max_draft_layers.get(case.draft.attention)
    if most is not None and tensors.num_layers > most:
        yield Trap(
            "too-many-layers",
            "fails at start",
            f"num_hidden_layers = {tensors.num_layers}",
            f"ValueError: this class runs {most} layer" + ("s" if most > 1 else ""),
            f"Write num_hidden_layers {tensors.stored_layers} if that is what the file holds; else serve it elsewhere.",
            case.source("max_draft_layers"),
        )
    elif tensors.num_layers != tensors.stored_layers and tensors.stored_layers:
        yield Trap(
            "other-number-of-layers",
            "silent, costs acceptance",
            f"num_hidden_layers = {tensors.num_layers}, but the file has {tensors.stored_layers}",
            "no error; the layers without weights run with whatever lies in their memory",
            f"Write num_hidden_layers {tensors.stored_layers}.",
            case.source("unknown_tensors"),
        )


def tensors_not_loaded(wiring: Wiring) -> Iterator[Trap]:
    """Names that the engine has no place for, and weights that it therefore does not get."""
    case = wiring.case
    unknown, missing = wiring.tensors.unknown, wiring.tensors.missing
    handling = case.profile.unknown_tensors.get(case.draft.attention)
    if unknown and handling == "refused":
        yield Trap(
            "unknown-tensors",
            "fails at start",
            f"{len(unknown)} tensors with names of another format: {_listed(unknown)}",
            "ValueError: there is no module or parameter of that name",
            f"Convert the draft: eagle3ref export {case.draft.folder.name} --format {case.profile.engine.lower()}",
            case.source("unknown_tensors"),
        )
    elif missing:
        warned = "a warning for each" if handling == "warned" else "no error, no warning"
        lost = (
            f"; {len(unknown)} are in the file under names that are {handling}: {_listed(unknown)}" if unknown else ""
        )
        yield Trap(
            "missing-tensors",
            "silent, costs acceptance",
            f"{len(missing)} tensors are not loaded: {_listed(missing)}{lost}",
            f"{warned}; the draft runs with random values there, accept len about 1",
            f"Convert the draft: eagle3ref export {case.draft.folder.name} --format {case.profile.engine.lower()}",
            case.source("unknown_tensors"),
        )


def missing_head(wiring: Wiring) -> Iterator[Trap]:
    """No lm_head in the file, and nobody who supplies one."""
    case = wiring.case
    if wiring.lm_head == "random":
        yield Trap(
            "missing-lm-head",
            "silent, costs acceptance",
            f"no lm_head.weight in the file, and draft_vocab_size = {case.draft.config.draft_vocab_size} asks for one",
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


def replaced_head(wiring: Wiring) -> Iterator[Trap]:
    """A head of its own that the engine replaces by the target's."""
    case = wiring.case
    if wiring.lm_head == "target" and wiring.captures and case.draft.ending("lm_head.weight") is not None:
        yield Trap(
            "replaced-lm-head",
            "silent, costs acceptance",
            "the file has an lm_head, but draft_vocab_size is null, which means: use the target's",
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
        f"eagle3ref inspect {case.draft.folder.name} --target {case.target.config.name} compares the two.",
        case.source("embedding"),
    )


def wrong_vocabulary_map(wiring: Wiring) -> Iterator[Trap]:
    """A d2t that does not say, draft id by draft id, which target id is meant."""
    case = wiring.case
    config, d2t = case.draft.config, case.draft.read("d2t")
    size = config.draft_vocab_size
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


def quantized_draft(wiring: Wiring) -> Iterator[Trap]:
    """A quantized draft, or a plain one that inherits the target's quantization."""
    case = wiring.case
    flags = case.flags
    stored = any(name.endswith(_SCALES) for name in case.draft.shapes)
    if stored and "quantization_config" not in case.draft.keys and flags.draft_quantization is None:
        yield Trap(
            "unnamed-quantization",
            "silent, costs acceptance",
            "the weights are stored with scales, but config.json names no quantization",
            "the scales are dropped or refused, and the draft runs on the unscaled values: accept len about 1",
            "Add the quantization_config of the export, or serve the unquantized draft.",
            case.source("unknown_tensors"),
        )
    is_plain = not stored and flags.draft_quantization is None
    if case.profile.engine == "SGLang" and flags.quantization is not None and is_plain:
        yield Trap(
            "inherited-quantization",
            "silent, costs acceptance",
            f"--quantization {flags.quantization} is handed on to the draft, whose weights are not quantized",
            "an error at load for formats with scales; fp8 and the like quantize the draft while it loads",
            "Add --speculative-draft-model-quantization unquant.",
            read_in("SGLang", "srt/arg_groups/serving_hook.py"),
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")

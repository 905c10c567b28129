"""Traps in the weights: tensors that are dropped, missing, or of a kind that the engine does not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import get_args

from eagle3ref.draft import ExportFormat
from eagle3ref.explain.case import Case
from eagle3ref.explain.engine_config import architecture_as_read
from eagle3ref.explain.loading import loaded_tensors
from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_SHOWN = 4
_SCALES = ("weight_scale", "weight_scale_inv", "input_scale")
_OF_THE_VERIFIER = "verifier_"  # copies of the target's, for training
_MTP_TYPES = ("deepseek_v3", "deepseek_v32")


def unsupported_architecture(wiring: Wiring) -> Iterator[Trap]:
    """A draft class that the engine does not have."""
    case = wiring.case
    kind = case.draft.attention_kind
    known = case.profile.architectures.get(kind, ())
    name = architecture_as_read(case.draft, case.profile)
    if name not in known:
        yield Trap(
            "unsupported-architecture",
            "fails at start",
            f"architectures = {name!r}",
            f"{case.release} serves {', '.join(known)}" if known else f"{case.release} has no {kind} draft",
            _converted(case) if known else "Use a release that has one, or another engine.",
            case.source("architectures"),
        )


def taken_for_mtp(wiring: Wiring) -> Iterator[Trap]:
    """A model_type by which vLLM puts its class for DeepSeek's own next-token layer in the place of the draft's."""
    case = wiring.case
    model_type = case.draft.keys.get("model_type")
    if case.profile.engine == "vLLM" and model_type in _MTP_TYPES:
        yield Trap(
            "taken-for-mtp",
            "fails at start",
            f"model_type = {model_type!r}, which vLLM takes for a multi-token-prediction layer",
            "ValueError: the architecture Eagle3DeepSeekMTPModel is not supported",
            "Write model_type kimi_k2 into the draft's config.json: the same settings, under a name of its own.",
            read_in("vLLM", "config/speculative.py (hf_config_override)"),
        )


def too_many_layers(wiring: Wiring) -> Iterator[Trap]:
    """More decoder layers than the engine's class has, or than the file."""
    case = wiring.case
    tensors, most = wiring.tensors, case.profile.max_draft_layers.get(case.draft.attention_kind)
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
    handling = case.profile.unknown_tensors.get(case.draft.attention_kind)
    # vLLM's loader passes over biases that it has no place for (AutoWeightsLoader), as after GPTQ.
    refused = tuple(name for name in unknown if handling == "refused" and not name.endswith(".bias"))
    if refused:
        yield Trap(
            "unknown-tensors",
            "fails at start",
            f"{len(refused)} tensors with names of another format: {_listed(refused)}",
            "ValueError: there is no module or parameter of that name",
            _converted(case),
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
            _converted(case),
            case.source("unknown_tensors"),
        )


def dropped_tensors(wiring: Wiring) -> Iterator[Trap]:
    """Tensors that no setting of config.json has a place for, in a draft that has all that it needs without them."""
    case = wiring.case
    handling = case.profile.unknown_tensors.get(case.draft.attention_kind)
    if handling == "refused" or wiring.tensors.missing:  # a trap of its own
        return
    # Those of a key that the engine ignores are told with the key.
    unplaced = loaded_tensors(case.profile.engine, case.draft, case.draft.config).unknown
    dropped = tuple(name for name in unplaced if not (name.endswith(_SCALES) or name.startswith(_OF_THE_VERIFIER)))
    if dropped:
        yield Trap(
            "dropped-tensors",
            "silent, costs acceptance",
            f"{len(dropped)} tensors have names that the engine has no place for: {_listed(dropped)}",
            f"{'a warning for each' if handling == 'warned' else 'no error, no warning'}; the draft runs without them, "
            "and accepts less if it was trained with them",
            "Find out which part of the draft they are; take them out of the file if they are none.",
            case.source("unknown_tensors"),
        )


def wrong_shapes(wiring: Wiring) -> Iterator[Trap]:
    """Tensors that do not fit into the network that config.json describes."""
    unsaid = wiring.case.draft.unsaid_vocabulary is not None
    misshapen = tuple(text for text in wiring.tensors.misshapen if not (unsaid and "lm_head.weight " in text))
    if misshapen:
        yield Trap(
            "wrong-shapes",
            "fails at start",
            f"{len(misshapen)} tensors have another shape than config.json says: {_listed(misshapen)}",
            "an assertion while the weights are loaded, or a part of a weight that is cut off without a word",
            "Check that config.json belongs to these weights: widths, heads, vocabularies and the number of layer ids.",
            wiring.case.source("unknown_tensors"),
        )


def quantized_draft(wiring: Wiring) -> Iterator[Trap]:
    """A quantized draft, or a plain one that inherits the target's quantization."""
    case = wiring.case
    flags = case.flags
    stored = any(name.endswith(_SCALES) for name in case.draft.shapes)
    dropped = tuple(name for name in wiring.tensors.unknown if name.endswith(_SCALES))
    if dropped and case.draft.names_quantization:
        yield Trap(
            "dropped-scales",
            "silent, costs acceptance",
            f"{_listed(dropped)}: this class has no quantized weight there",
            "no error; the weight runs on its unscaled values, accept len about 1",
            "Export the draft again with these weights unquantized.",
            case.source("unknown_tensors"),
        )
    elif dropped and flags.draft_quantization is None:
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


def _converted(case: Case) -> str:
    engine = case.profile.engine.lower()
    if engine in get_args(ExportFormat):
        words = ["eagle3ref", "export", f"{case.draft.folder}", "--format", engine]
        words += ["-o", f"{case.draft.folder.resolve().name}-{engine}", "--target", case.target_folder]
        return f"Convert the draft: {shlex.join(words)}"
    return "Rename them in the files, or use another engine."


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")

"""Which of a draft's tensors an engine loads, by their names and shapes alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from eagle3ref.config import AttentionKind, DraftConfig
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.draft import Eagle3Draft
from eagle3ref.explain.case import DraftFiles

_LAYER = re.compile(r"(?:layers|midlayer)\.(?:(\d+)\.)?")
_LATER_NORM = re.compile(r"^layers\.[1-9]\d*\.(input_layernorm|hidden_norm)\.weight$")
_KNOWN_BESIDES = re.compile(r"(^|\.)(d2t|t2d)$|rotary_emb\.inv_freq$")
_SCALE = re.compile(r"\.(weight_scale|weight_scale_inv|input_scale)$")


@dataclass(frozen=True)
class LoadedTensors:
    """What becomes of the tensors of a draft.

    Args:
        unknown: names in the file that the engine has no place for, or loads and never uses.
        missing: tensors that the network needs and the file does not give, in our names. Embedding and head are not
            among them: the engine has rules of its own for these.
        misshapen: tensors of another shape than the network's, each with both shapes.
        num_layers: how many decoder layers the engine builds, from config.json.
        stored_layers: how many the file has.
    """

    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    num_layers: int
    stored_layers: int


def loaded_tensors(engine: str, draft: DraftFiles, config: DraftConfig) -> LoadedTensors:
    """Hold a draft's tensor names and shapes against the network that the engine builds.

    Args:
        engine: ``"SGLang"`` and ``"vLLM"`` have their own spellings, others take ours.
        draft: the files.
        config: as the engine reads it.
    """
    built = JsonFields(draft.keys, str(draft.folder / "config.json")).size("num_hidden_layers", 1)
    # A network of thousands of layers is a target's count in a draft's config; one more than is stored tells it.
    stored = len({match[1] or "0" for name in draft.shapes if (match := _LAYER.search(name))})
    wanted = _parameter_shapes(config, min(built, max(stored, 1) + 1))
    found, unknown, misshapen = set(), [], []
    for stored_name, shape in draft.shapes.items():
        name = engine_name(engine, draft.attention_kind, stored_name)
        if name in wanted:
            found.add(name)
            if shape != wanted[name]:
                misshapen.append(f"{stored_name} {list(shape)} for {list(wanted[name])}")
        elif name is None or not (_KNOWN_BESIDES.search(name) or _is_loaded_scale(engine, draft, name, wanted)):
            unknown.append(stored_name)
    missing = sorted(wanted.keys() - found - {"embed_tokens.weight", "lm_head.weight"})
    return LoadedTensors(tuple(unknown), tuple(missing), tuple(misshapen), built, stored)


def _is_loaded_scale(engine: str, draft: DraftFiles, name: str, wanted: Collection[str]) -> bool:
    """Whether it belongs to a weight that the engine builds quantized. SGLang's Llama class has a plain fc."""
    weight = _SCALE.sub(".weight", name)
    is_plain = engine == "SGLang" and draft.attention_kind == "gqa" and weight == "fc.weight"
    return weight != name and weight in wanted and draft.names_quantization and not is_plain


def engine_name(engine: str, attention: AttentionKind, stored: str) -> str | None:
    """Our name of the parameter that an engine loads a stored tensor into; None if it has no such parameter.

    Sources: SGLang 0.5.23, models/llama_eagle3.py and models/kimi_k25_eagle3.py (load_weights); vLLM 0.32.0,
    models/llama_eagle3.py and models/deepseek_eagle3.py.
    """
    if engine == "SGLang":
        return _sglang_name(attention, stored)
    if engine == "vLLM":
        # Every name but lm_head gets a "model." in front, so that one that has it already names nothing.
        plain = stored.replace("midlayer.", "layers.0.")
        return None if plain.startswith("model.") else _with_norm_of_later_layers(plain, "input_layernorm")
    return stored.removeprefix("model.").replace("midlayer.", "layers.0.")


def _sglang_name(attention: AttentionKind, stored: str) -> str | None:
    if attention == "mla":
        if stored.startswith("model."):
            return None
        return re.sub(r"^midlayer\.", "layers.0.", stored)
    plain = stored.replace("midlayer", "layers.0")
    for old, new in (("aux_norm_low", "fc_norm.0"), ("aux_norm_mid", "fc_norm.1"), ("aux_norm_high", "fc_norm.2")):
        plain = plain.replace(old, new)
    return _with_norm_of_later_layers(plain.removeprefix("model."), "hidden_norm")


def _with_norm_of_later_layers(name: str, used: str) -> str | None:
    """Layers after the first have one norm before attention; the engines use it under two names, we under a third."""
    match = _LATER_NORM.match(name)
    if match is None:
        return name
    return name.replace("hidden_norm", "input_layernorm") if match[1] == used else None


def _parameter_shapes(config: DraftConfig, num_layers: int) -> dict[str, tuple[int, ...]]:
    points = tuple(range(config.num_aux_hidden_states))
    with torch.device("meta"):
        network = Eagle3Draft(config, num_layers, points, torch.empty(0, dtype=torch.int64))
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}

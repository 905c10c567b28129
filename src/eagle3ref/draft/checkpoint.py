"""Reading a draft from its folder, strict in both directions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.config import FINAL_NORM_MEANING, DraftConfig, FinalNorm
from eagle3ref.config.draft import EXPORTED_POINTS_KEY
from eagle3ref.config.draft_refusals import refuse_other_networks
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.draft.matrices import supply_embedding, supply_lm_head
from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.draft.quantized import dequantize
from eagle3ref.draft.tensor_names import num_layers, plain_names
from eagle3ref.draft.vocab import mapping_warnings, read_target_ids
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import SharedWeights, shared_weights
from eagle3ref.target.base import Target
from eagle3ref.weights import Weights

_READABLE = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Their writers mean EAGLE-3.1 by norm_output.
_SURE_OF_NORM_OUTPUT = ("speculators", "TorchSpec", "NeMo", "modelopt", "vLLM")


class DraftWarning(UserWarning):
    """Something odd about a draft that can still be loaded."""


def load_draft(
    folder: str | Path,
    *,
    target: Target | str | Path | None = None,
    capture_points: Sequence[int] | None = None,
    rope_theta: float | None = None,
    hidden_double_norm: bool = False,
    final_norm: FinalNorm | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Eagle3Draft:
    """Load an EAGLE-3 draft of any published family, GQA or MLA, from safetensors, shards or pytorch_model.bin.

    What is odd but loadable is warned of (``DraftWarning``) and kept in ``draft.warnings``. ``draft.origins`` says
    where the capture points come from, who supplies embedding and head, and what was chosen where the file leaves it
    open.

    Args:
        folder: config.json and the weights.
        target: the target or its folder; supplies the embedding and the head that the draft does not bring.
        capture_points: overrides what config.json says (residual streams *entering* these layers).
        rope_theta: overrides the base of the rope; some drafts were trained with another one than their file says.
        hidden_double_norm: see ``DraftConfig``.
        final_norm: overrides what the file says or leaves open, see ``FINAL_NORM_MEANING``.
        device: where the weights go.
        dtype: of the weights; the checkpoint's when None. 8-bit weights count as of the dtype of the final norm.

    Raises:
        Eagle3RefError: another kind of draft, unknown or missing tensors, wrong widths, non-finite or all-zero weights,
            packed weights, a ``d2t`` that does not fit, unresolvable capture points, or an embedding that neither side
            has.
    """
    where = str(folder)
    config, weights = open_draft(folder)
    config, chosen = _with_options(config, rope_theta, hidden_double_norm, final_norm)
    stored = {plain: weights.read(name) for plain, name in plain_names(weights.names, where).items()}
    tensors, scaled = dequantize(stored, JsonFields.read(Path(folder) / "config.json"), where)
    shared = None if target is None else _shared(config, target, where)
    d2t, t2d = (tensors.pop(name, None) for name in ("d2t", "t2d"))
    depth = None if shared is None else shared.config.num_layers
    points, how = resolve_capture_points(config, depth, capture_points, where)
    ids = read_target_ids(config, d2t, where)
    with torch.device("meta"):
        draft = Eagle3Draft(config, num_layers(tensors), points, ids)
    draft.origins = {"family": f"{config.family}: {config.family_mark}", "capture points": f"{points}, {how}", **chosen}
    if scaled is not None:
        draft.origins["weights"] = scaled
    _warn(draft, _final_norm_warnings(config, final_norm))
    _warn(draft, _switch_warnings(config))
    _warn(draft, supply_embedding(draft, tensors, shared))
    _warn(draft, supply_lm_head(draft, tensors, shared))
    _check_tensors(draft, tensors, where)
    if d2t is not None:
        _warn(draft, mapping_warnings(d2t, ids, t2d, config.vocab_size, tensors["lm_head.weight"]))
    if dtype is None:
        dtype = stored["fc.weight" if scaled is None else "norm.weight"].dtype
    draft.load_state_dict({name: value.to(device=device, dtype=dtype) for name, value in tensors.items()}, assign=True)
    draft.target_ids = ids.to(device)
    return draft.requires_grad_(False).eval()


def open_draft(folder: str | Path) -> tuple[DraftConfig, Weights]:
    """Settings and weight files of a draft; no tensor is read.

    Raises:
        Eagle3RefError: another kind of draft, a variant that is not implemented, or unreadable files.
    """
    # By its config.json first: another kind of draft may hold its weights in files that cannot be opened here.
    refuse_other_networks(JsonFields.read(Path(folder) / "config.json"), None)
    weights = Weights(folder)
    return DraftConfig.from_folder(folder, weights.names), weights


def _with_options(
    config: DraftConfig, rope_theta: float | None, hidden_double_norm: bool, final_norm: FinalNorm | None
) -> tuple[DraftConfig, dict[str, str]]:
    """The settings to run with, and a sentence on each that the file leaves open or the caller overrides."""
    chosen = {}
    if final_norm is not None and final_norm not in FINAL_NORM_MEANING:
        raise Eagle3RefError(
            "choosing the final norm of a draft",
            found=repr(final_norm),
            expected=f"one of {', '.join(FINAL_NORM_MEANING)}",
            action="Leave it out to follow the file.",
        )
    if final_norm is not None or config.final_norm_key:
        said_by = config.final_norm_key if final_norm is None else "given by the caller"
        config = replace(config, final_norm=final_norm or config.final_norm)
        chosen["final norm"] = f"{FINAL_NORM_MEANING[config.final_norm]} ({said_by})"
    if rope_theta is not None:
        rope = config.attention.rope
        chosen["rope"] = f"base {rope_theta:g}, given by the caller; config.json says {rope.theta:g}"
        attention = replace(config.attention, rope=replace(rope, theta=rope_theta))
        config = replace(config, attention=attention)
    if hidden_double_norm:
        chosen["hidden norm"] = "after input_layernorm, given by the caller"
        config = replace(config, hidden_double_norm=True)
    return config, chosen


def _final_norm_warnings(config: DraftConfig, override: FinalNorm | None) -> list[str]:
    is_ours = config.capture_ids_key == EXPORTED_POINTS_KEY
    is_settled = is_ours or override is not None or config.family in _SURE_OF_NORM_OUTPUT
    if is_settled or not config.final_norm_key.startswith("norm_output"):
        return []
    if config.norm_output:
        return [
            "norm_output is read as EAGLE-3.1 does: the recurrent state is taken after the final norm. SpecForge "
            "writes the same key, trains on the state before it, and SGLang runs such a draft as 3.1. Nothing in the "
            'file tells the two apart; measure final_norm = "head" too.'
        ]
    return [
        "norm_output = false is read as plain EAGLE-3. SpecForge means by it that the head reads the stream without "
        'the final norm; if SpecForge wrote this draft, use final_norm = "none".'
    ]


def _shared(config: DraftConfig, target: Target | str | Path, where: str) -> SharedWeights:
    shared = shared_weights(target)
    sizes = shared.config.hidden_size, shared.config.vocab_size
    config.check_target(*sizes, f"loading draft {where} for target {shared.config.name}")
    return shared


def _check_tensors(draft: Eagle3Draft, tensors: dict[str, Tensor], where: str) -> None:
    expected = {name: tuple(parameter.shape) for name, parameter in draft.named_parameters()}
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise Eagle3RefError(
            f"loading draft {where}",
            found=_listed("missing", missing) + (" and " if missing and unknown else "") + _listed("unknown", unknown),
            expected=f"exactly the {len(expected)} tensors that config.json describes",
            action=_advice(missing, unknown),
        )
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise _wrong_shape(name, tensor, shape, where)
        if tensor.dtype not in _READABLE:
            found = f"{name} of dtype {tensor.dtype}"
            _refuse_values(where, found, "bf16, fp16, fp32 or fp64, or 8-bit weights with scales")
        if not all(math.isfinite(end) for end in tensor.aminmax()):  # isfinite would take twice the tensor's memory
            _refuse_values(where, f"{name} with non-finite values", "finite weights")
    if not bool(tensors["fc.weight"].any()):
        _refuse_values(where, "an all-zero fc.weight", "trained weights")


def _switch_warnings(config: DraftConfig) -> list[str]:
    """The tensors outweigh the key: an fc over captured states was trained with them."""
    if not config.capture_is_off:
        return []
    return [
        "eagle_config.use_aux_hidden_state is false, and fc shows a head that was trained on captured states: it is "
        "run as one. SGLang would capture nothing for it; write true."
    ]


def _listed(kind: str, names: list[str]) -> str:
    return f"{len(names)} {kind} tensors ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})" if names else ""


def _advice(missing: list[str], unknown: list[str]) -> str:
    if missing == ["embed_tokens.weight"]:
        return "This draft shares the target's embedding: pass the target or its folder (--target)."
    if missing == ["lm_head.weight"]:
        return "SGLang would keep an uninitialised head (accept len 1.00). Export the draft with its lm_head."
    if unknown and not missing:
        return "SGLang would drop them silently and run another network than the trained one."
    return "A server would run the missing ones with random values. Check that config.json belongs to these weights."


def _wrong_shape(name: str, tensor: Tensor, shape: tuple[int, ...], where: str) -> Eagle3RefError:
    action = "config.json and the weights do not belong together; a server would fail or read garbage."
    if name == "fc.weight":
        action = "fc takes all capture points side by side: check num_aux_hidden_states, the capture ids and "
        action += "target_hidden_size in config.json."
    return Eagle3RefError(
        f"loading draft {where}", found=f"{name} of shape {tuple(tensor.shape)}", expected=f"{shape}", action=action
    )


def _refuse_values(where: str, found: str, expected: str) -> None:
    raise Eagle3RefError(
        f"loading draft {where}",
        found=found,
        expected=expected,
        action="A server would run it without a word and accept nothing. Export or download the draft again.",
    )


def _warn(draft: Eagle3Draft, messages: list[str]) -> None:
    for message in messages:
        draft.warnings.append(message)
        warnings.warn(message, DraftWarning, stacklevel=3)

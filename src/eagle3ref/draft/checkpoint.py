"""Reading a draft from its folder, strict in both directions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.config import DraftConfig
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.draft.vocab import mapping_warnings, target_ids
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import SharedWeights, shared_weights
from eagle3ref.target.base import Target
from eagle3ref.weights import Weights

# Spellings of one tensor, in the order in which they are undone.
_RENAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(\d+)\."), r"layers.\1."),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
    # In a layer after the first, SGLang's name of the norm before attention is hidden_norm, vLLM's input_layernorm.
    (re.compile(r"^(layers\.[1-9]\d*)\.hidden_norm\."), r"\1.input_layernorm."),
)
_LAYER = re.compile(r"layers\.(\d+)\.")
_READABLE = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_VOCABULARY_MAPS = ("d2t", "t2d")


class DraftWarning(UserWarning):
    """Something odd about a draft that can still be loaded."""


def load_draft(
    folder: str | Path,
    *,
    target: Target | str | Path | None = None,
    capture_points: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Eagle3Draft:
    """Load an EAGLE-3 draft: Llama-style (``midlayer.``, ``layers.0.``) or Kimi MLA, safetensors or pytorch_model.bin.

    What is odd but loadable is warned of (``DraftWarning``) and kept in ``draft.warnings``; ``draft.origins`` says
    where the capture points come from, and who supplies embedding and head.

    Args:
        folder: config.json and the weights.
        target: the target or its folder; supplies the embedding and the head that the draft does not bring.
        capture_points: overrides what config.json says (residual streams *entering* these layers).
        device: where the weights go.
        dtype: of the weights; the checkpoint's when None.

    Raises:
        Eagle3RefError: unknown or missing tensors, wrong widths, non-finite or all-zero weights, a ``d2t`` that does
            not fit, unresolvable capture points, or an embedding that neither side has.
    """
    config = DraftConfig.from_folder(folder)
    tensors = _read_tensors(Weights(folder), str(folder))
    shared = None if target is None else _shared(config, target, str(folder))
    d2t, t2d = (tensors.pop(name, None) for name in _VOCABULARY_MAPS)
    # Counted, since num_hidden_layers is often the target's. A gap in the numbers ends as missing and unknown tensors.
    num_layers = max(1, len({match[1] for name in tensors if (match := _LAYER.match(name))}))
    points, how = resolve_capture_points(
        config, None if shared is None else shared.config.num_layers, capture_points, str(folder)
    )
    ids = _target_ids(config, d2t, str(folder))
    with torch.device("meta"):
        draft = Eagle3Draft(config, num_layers, points, ids)
    draft.origins["capture points"] = f"{points}, {how}"
    if config.norm_output:
        _warn(
            draft,
            "norm_output is read as EAGLE-3.1 does: the recurrent state is taken after the final norm. A SpecForge "
            "export writes the same key and means something else; its state is always taken before it.",
        )
    _supply(draft, tensors, shared)
    _check_tensors(draft, tensors, str(folder))
    if d2t is not None:
        _warn(draft, *mapping_warnings(d2t, ids, t2d, config.vocab_size, tensors["lm_head.weight"]))
    dtype = tensors["fc.weight"].dtype if dtype is None else dtype
    draft.load_state_dict({name: value.to(device=device, dtype=dtype) for name, value in tensors.items()}, assign=True)
    draft.target_ids = ids.to(device)
    return draft.requires_grad_(False).eval()


def _read_tensors(weights: Weights, where: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in sorted(weights.names):
        if name.endswith("rotary_emb.inv_freq"):
            continue
        plain = name
        for pattern, replacement in _RENAMES:
            plain = pattern.sub(replacement, plain)
        if plain in tensors:
            raise Eagle3RefError(
                f"loading draft {where}",
                found=f"two tensors for {plain}, the second called {name}",
                expected="one",
                action="Remove the one that was not trained.",
            )
        tensors[plain] = weights.read(name)
    return tensors


def _shared(config: DraftConfig, target: Target | str | Path, where: str) -> SharedWeights:
    shared = shared_weights(target)
    sizes = shared.config.hidden_size, shared.config.vocab_size
    config.check_target(*sizes, f"loading draft {where} for target {shared.config.name}")
    return shared


def _target_ids(config: DraftConfig, d2t: Tensor | None, where: str) -> Tensor:
    size = config.draft_vocab_size
    if d2t is None and size == config.vocab_size:
        return torch.arange(size, device="cpu")
    if d2t is None or tuple(d2t.shape) != (size,) or d2t.dtype not in (torch.int32, torch.int64):
        raise Eagle3RefError(
            f"loading draft {where}",
            found="no d2t" if d2t is None else f"d2t of shape {tuple(d2t.shape)} and dtype {d2t.dtype}",
            expected=f"d2t, int64 of shape ({size},): draft_vocab_size is {size} and vocab_size {config.vocab_size}",
            action="Without it SGLang would take draft ids for target ids. Export the draft with its vocabulary map.",
        )
    return target_ids(d2t, config.vocab_size, where)


def _supply(draft: Eagle3Draft, tensors: dict[str, Tensor], shared: SharedWeights | None) -> None:
    """Fill in embedding and head from the target where the draft has none, and say who supplied what."""
    config = draft.config
    own = tensors.get("embed_tokens.weight")
    if own is None and shared is not None:
        tensors["embed_tokens.weight"] = shared.embedding()
        draft.origins["embedding"] = "the target's (the draft brings none)"
    elif own is not None:
        draft.origins["embedding"] = "the draft's own"
        if shared is not None and config.target_hidden_size == config.hidden_size:
            _warn_of_other_embedding(draft, own, shared)
    if "lm_head.weight" in tensors:
        draft.origins["lm_head"] = "the draft's own"
        if config.shares_target_lm_head and not config.tie_word_embeddings:
            _warn(
                draft,
                "the file has an lm_head but no draft_vocab_size: SGLang would use the target's head. "
                "The draft's own is used here.",
            )
    elif config.tie_word_embeddings and "embed_tokens.weight" in tensors:
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"]
        draft.origins["lm_head"] = "tied to the embedding"
    elif shared is not None and config.draft_vocab_size == config.vocab_size:
        tensors["lm_head.weight"] = shared.lm_head()
        draft.origins["lm_head"] = "the target's (the draft brings none)"
        if not config.shares_target_lm_head:
            _warn(
                draft,
                "no lm_head in the file although draft_vocab_size is set: SGLang would keep an uninitialised head "
                "(accept len 1.00). Taken from the target here; export the draft with its head.",
            )


def _warn_of_other_embedding(draft: Eagle3Draft, own: Tensor, shared: SharedWeights) -> None:
    theirs = shared.embedding()
    if own.shape != theirs.shape or not torch.equal(own, theirs.to(own.device, own.dtype)):
        _warn(
            draft,
            "the draft's embedding differs from the target's: SGLang would replace it by the target's, vLLM keeps it. "
            "Kept here.",
        )


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
        if tensor.dtype not in _READABLE or not bool(torch.isfinite(tensor).all()):
            found = f"{name} with non-finite values or of dtype {tensor.dtype}"
            _refuse_values(where, found, "finite bf16, fp16, fp32 or fp64 (quantized drafts are not read)")
    if not bool(tensors["fc.weight"].any()):
        _refuse_values(where, "an all-zero fc.weight", "trained weights")


def _listed(kind: str, names: list[str]) -> str:
    return f"{len(names)} {kind} tensors ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})" if names else ""


def _advice(missing: list[str], unknown: list[str]) -> str:
    if missing == ["embed_tokens.weight"]:
        return "This draft shares the target's embedding: pass the target (or its folder)."
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


def _warn(draft: Eagle3Draft, *messages: str) -> None:
    for message in messages:
        draft.warnings.append(message)
        warnings.warn(message, DraftWarning, stacklevel=3)

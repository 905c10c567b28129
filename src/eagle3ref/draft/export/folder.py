"""Writing an exported draft, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3ref.draft.export.capture_ids import capture_ids
from eagle3ref.draft.export.config_json import config_json
from eagle3ref.draft.export.layouts import READER, ExportFormat, layer_kind, refuse_losses
from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.durable import sync
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import SharedWeights, Target, shared_weights

_EMBEDDING = "embed_tokens.weight"


def export_draft(
    draft: Eagle3Draft, folder: str | Path, *, format: ExportFormat, target: Target | str | Path | None = None
) -> Path:
    """Write a draft as SGLang 0.5.23, vLLM 0.32.0 or speculators 0.9.0 reads it.

    The copy has that reader's names and numbering of capture points, its own head, the dtype of the loaded weights,
    and nothing else. ``load_draft`` reads it back to the same network. An embedding that equals the target's is left
    out for the two engines, which take the target's then.

    Args:
        draft: as loaded; what it took from a target is written like its own.
        folder: must not exist.
        format: ``"sglang"``, ``"vllm"`` or ``"speculators"``.
        target: the target or its folder.

    Returns:
        The folder.

    Raises:
        Eagle3RefError: the folder exists; the reader would run another network, with the fields named; or the capture
            ids cannot be written without knowing the target.
    """
    folder = Path(folder)
    doing = f"exporting a draft to {folder} for {READER.get(format, format)}"
    if format not in get_args(ExportFormat):
        expected = ", ".join(get_args(ExportFormat))
        raise Eagle3RefError(doing, found=f"format {format!r}", expected=expected, action="Choose one of them.")
    if folder.exists():
        raise Eagle3RefError(
            doing, found="something of that name", expected="a new folder", action="Choose another name, or remove it."
        )
    refuse_losses(draft, format, doing)
    shared = None if target is None else shared_weights(target)
    if shared is not None:
        draft.config.check_target(shared.config.hidden_size, shared.config.vocab_size, doing)
    ids = capture_ids(draft.capture_points, format, None if shared is None else shared.config, doing)
    config = config_json(draft, format, ids, None if shared is None else shared.config)
    tensors = _named(draft, format, keep_embedding=_needs_embedding(draft, format, shared, doing))
    _write(folder, config, tensors)
    return folder


def _needs_embedding(draft: Eagle3Draft, format: ExportFormat, shared: SharedWeights | None, doing: str) -> bool:
    """Whether the file must bring the embedding.

    Raises:
        Eagle3RefError: SGLang would put the target's in its place, and that is another one.
    """
    config = draft.config
    if format == "speculators" or shared is None or config.target_hidden_size != config.hidden_size:
        return True
    same = shared.has_embedding(draft.embed_tokens.weight)
    if format == "sglang" and not same:
        raise Eagle3RefError(
            doing,
            found=f"an {_EMBEDDING} that is not the target's",
            expected="the target's, which SGLang puts in its place",
            action="It would run another network without a word. Choose another --format, or another engine.",
        )
    return not same


def _named(draft: Eagle3Draft, format: ExportFormat, *, keep_embedding: bool) -> dict[str, Tensor]:
    """The tensors by the names that the format's reader knows, each with memory of its own."""
    one_llama_layer = layer_kind(draft) == "llama" and len(draft.layers) == 1
    tensors = {}
    for name, value in draft.state_dict().items():
        if format == "sglang":
            # SpecForge's name of the only layer is the one that every SGLang version knows.
            name = name.replace("layers.0.", "midlayer.") if one_llama_layer else _sglang_norm(name)
        if keep_embedding or name != _EMBEDDING:
            tensors[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    ids = draft.target_ids.cpu()
    if not torch.equal(ids, torch.arange(draft.config.vocab_size)):
        tensors["d2t"] = ids - torch.arange(len(ids))
        if format != "vllm":
            tensors["t2d"] = torch.isin(torch.arange(draft.config.vocab_size), ids)
    return tensors


def _sglang_norm(name: str) -> str:
    """In a layer after the first, SGLang's norm before attention is called hidden_norm."""
    is_first = name.startswith("layers.0.")
    return name if is_first else name.replace(".input_layernorm.", ".hidden_norm.")


def _write(folder: Path, config: dict[str, object], tensors: dict[str, Tensor]) -> None:
    """Onto the disk under another name, then under its own: it is there complete, or not at all."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir()
    try:
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        # safetensors makes its files for the owner's eyes only.
        (partial / "model.safetensors").chmod((partial / "config.json").stat().st_mode)
        for path in (*partial.iterdir(), partial):
            sync(path)
        partial.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise

"""Recorded sequences written as training pipelines write them; each says which code of the producer it follows."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3ref.trace import RecordedSequence

Writer = Callable[[Path, Iterable[RecordedSequence]], Path]
USUAL = (2, 3, 4)  # (2, n // 2, n - 3) of the tiny target's 7 layers
LATER = (3, 4, 5)  # one layer on, as speculators 0.3 and 0.4 captured
LAST = 7  # the stream behind the last layer, before the norm


def loss_mask(sequence: RecordedSequence) -> Tensor:
    """1 on the answer."""
    return (torch.arange(len(sequence.tokens)) >= sequence.prompt_length).to(torch.int64)


def specforge(folder: Path, sequences: Iterable[RecordedSequence], *, packed: bool = False) -> Path:
    """SpecForge a6b6b02, scripts/prepare_hidden_states.py: ``_save_tensor_sync``, ``_prepare_output_dirs``."""
    for i, sequence in enumerate(sequences):
        file = folder / "rows_0-2000" / f"data_{i}.ckpt{'.gz' * packed}"
        file.parent.mkdir(parents=True, exist_ok=True)
        fields = {
            "input_ids": sequence.tokens,
            "loss_mask": loss_mask(sequence),
            "aux_hidden_state": joined(sequence, USUAL)[None],
            "hidden_state": own(sequence.final_hidden_state)[None],
        }
        if packed:
            with gzip.open(file, "wb", compresslevel=1) as stream:
                torch.save(fields, stream)
        else:
            torch.save(fields, file)
    (folder / "vocab_mapping").mkdir(exist_ok=True)
    torch.save({"d2t": torch.zeros(4), "t2d": torch.zeros(9)}, folder / "vocab_mapping" / "vocab_mapping.pt")
    return folder


def speculators(folder: Path, sequences: Iterable[RecordedSequence]) -> Path:
    """speculators c05b95b, launch_vllm.py (ids [2, n // 2, n - 3, n]) and vLLM's ExampleHiddenStatesConnector."""
    folder.mkdir(parents=True)
    for i, sequence in enumerate(sequences):
        states = torch.stack([sequence.aux_hidden_states[point] for point in (*USUAL, LAST)], 1)
        save_file({"token_ids": own(sequence.tokens), "hidden_states": states}, folder / f"hs_{i}.safetensors")
    return folder


def speculators_listed(folder: Path, sequences: Iterable[RecordedSequence]) -> Path:
    """speculators v0.3.0, data_generation_offline.py, custom_worker.py: outputs of layers 2, n // 2, n - 3, n - 1."""
    folder.mkdir(parents=True)
    for i, sequence in enumerate(sequences):
        states = [own(sequence.aux_hidden_states[point]) for point in (*LATER, LAST)]
        fields = {"input_ids": sequence.tokens, "hidden_states": states, "loss_mask": loss_mask(sequence)}
        torch.save(fields, folder / f"data_{i}.pt")
    return folder


def speculators_joined(folder: Path, sequences: Iterable[RecordedSequence]) -> Path:
    """What speculators v0.3.0 calls the v0 data format (train/data.py, ``standardize_data_v0``)."""
    folder.mkdir(parents=True)
    for i, sequence in enumerate(sequences):
        fields = {
            "input_ids": sequence.tokens,
            "loss_mask": loss_mask(sequence),
            "hidden_state": joined(sequence, USUAL),
        }
        torch.save({**fields, "target": own(sequence.final_hidden_state)}, folder / f"data_{i}.pt")
    return folder


def modelopt_hf(folder: Path, sequences: Iterable[RecordedSequence]) -> Path:
    """modelopt a2fbac7, compute_hidden_states_hf.py: ``hidden_states[-1]`` of transformers is behind the norm."""
    return _modelopt(folder, sequences, lambda sequence: own(sequence.final_hidden_state))


def modelopt_vllm(folder: Path, sequences: Iterable[RecordedSequence]) -> Path:
    """modelopt a2fbac7, compute_hidden_states_vllm.py: the last slot, before the norm, and no flag that says so."""
    return _modelopt(folder, sequences, lambda sequence: own(sequence.aux_hidden_states[LAST]))


def modelopt_trtllm(folder: Path, sequences: Iterable[RecordedSequence]) -> Path:
    """TensorRT-LLM's SaveHiddenStates, before compute_hidden_states_trtllm.py renames: a list of one dictionary."""
    folder.mkdir(parents=True)
    for i, sequence in enumerate(sequences):
        states = {"aux_hidden_states": joined(sequence, USUAL), "hidden_state": own(sequence.final_hidden_state)}
        torch.save([{"id": i, "input_ids": sequence.tokens, **states}], folder / f"dp_0_{i + 1}.pt")
    return folder


def _modelopt(folder: Path, sequences: Iterable[RecordedSequence], final: Callable[[RecordedSequence], Tensor]) -> Path:
    folder.mkdir(parents=True)
    for sequence in sequences:
        fields: dict[str, Any] = {
            "input_ids": sequence.tokens,
            "hidden_states": final(sequence),
            "aux_hidden_states": joined(sequence, USUAL),
            "loss_mask": loss_mask(sequence),
            "conversation_id": sequence.id,
        }
        torch.save(fields, folder / f"{sequence.id}.pt")
    return folder


def joined(sequence: RecordedSequence, points: Sequence[int]) -> Tensor:
    """[T, A * C]."""
    return torch.cat([sequence.aux_hidden_states[point] for point in points], -1)


def own(tensor: Tensor) -> Tensor:
    """A copy that owns its memory: files hold whole storages."""
    return tensor.clone()


WRITERS: dict[str, tuple[Writer, str, tuple[int, ...]]] = {
    "specforge": (specforge, "specforge", USUAL),
    "specforge packed": (lambda folder, sequences: specforge(folder, sequences, packed=True), "specforge", USUAL),
    "speculators": (speculators, "speculators", USUAL),
    "speculators 0.3": (speculators_listed, "speculators-pt", LATER),
    "speculators v0": (speculators_joined, "speculators-pt", USUAL),
    "modelopt on transformers": (modelopt_hf, "modelopt", USUAL),
    "modelopt on vLLM": (modelopt_vllm, "modelopt", USUAL),
    "modelopt on TensorRT-LLM": (modelopt_trtllm, "modelopt", USUAL),
}

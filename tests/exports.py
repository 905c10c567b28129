"""What the export tests share: tiny drafts and targets, and what "the same network" means."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3ref.draft import Eagle3Draft, load_draft

FORMATS = ("sglang", "vllm", "speculators")
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
# Settings that shape the forward pass; the others say where they were found.
NETWORK = (
    *("hidden_size", "target_hidden_size", "intermediate_size", "vocab_size", "draft_vocab_size", "rms_norm_eps"),
    *("max_position_embeddings", "attention", "num_aux_hidden_states", "fc_bias", "mlp_bias", "final_norm", "fc_norm"),
    *("norm_before_fc", "norm_before_residual", "hidden_double_norm", "logit_scale"),
)


def logits(draft: Eagle3Draft) -> Tensor:
    """Of five rows behind each other and of two more steps after the last.

    On a copy in memory of its own: BLAS adds in another order where a file has put the weights at odd addresses.
    """
    draft = copy.deepcopy(draft)
    generator = torch.Generator().manual_seed(0)
    aux = torch.randn(5, draft.fc.in_features, generator=generator)
    tokens = torch.randint(draft.config.vocab_size, (7,), generator=generator)
    rows = torch.arange(5)
    output = draft(draft.fuse(aux)[None, None], tokens[None, None, :5], rows[None, None], mask=rows <= rows[:, None])
    found = [output.normed]
    for step in range(2):
        mask = torch.ones(1, 6 + step, dtype=torch.bool)
        state, token = output.state[:, :, -1:], tokens[None, None, 5 + step : 6 + step]
        output = draft(state, token, torch.tensor([[[5 + step]]]), mask=mask, own=output.rows)
        found.append(output.normed)
    return draft.logits(torch.cat(found, 2))


def assert_same_network(one: Eagle3Draft, other: Eagle3Draft) -> None:
    assert one.capture_points == other.capture_points
    assert torch.equal(one.target_ids, other.target_ids)
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, value in one.state_dict().items():
        assert value.dtype == other.state_dict()[name].dtype, name
        assert torch.equal(value, other.state_dict()[name]), name
    assert {key: getattr(one.config, key) for key in NETWORK} == {key: getattr(other.config, key) for key in NETWORK}
    assert windows(one) == windows(other)
    assert torch.equal(logits(one), logits(other))


def windows(draft: Eagle3Draft) -> list[int | None]:
    given = draft.config.layer_windows[: len(draft.layers)]
    return [*given, *[None] * (len(draft.layers) - len(given))]


def draft_of(folder: Path, kind: str = "gqa", *, points=(2, 3, 4), dtype=None, layers: int = 1, **keys) -> Eagle3Draft:
    return load_draft(tiny.draft_folder(folder, kind, num_layers=layers, **keys), capture_points=points, dtype=dtype)


def write_target(folder: Path, embedding: Tensor, *, model_type: str = "llama", layers: int = 8) -> Path:
    folder.mkdir(parents=True)
    config = {"model_type": model_type, "num_hidden_layers": layers}
    config |= {"vocab_size": embedding.shape[0], "hidden_size": embedding.shape[1]}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.embed_tokens.weight": embedding, HEAD: embedding * 2}, folder / "model.safetensors")
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


ROPES = {
    "plain": {},
    "older yarn": {"rope_scaling": tiny.YARN},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 7.0, "mscale": 0.7}},
    "yarn with both temperatures": {
        "rope_parameters": {"rope_type": "yarn", "factor": 7.0, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 9.0}
    },
    "yarn with a factor": {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 1.7, "truncate": False}},
    "llama3": {"rope_scaling": tiny.LLAMA3},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "partial": {"partial_rotary_factor": 0.4},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 3.0}},
}

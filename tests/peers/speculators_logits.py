"""Draft logits of speculators for every variant, three training-time-test steps each, fp32, eager attention.

Runs in the peer's environment: ``python speculators_logits.py OUTPUT.safetensors [DRAFTS]``. DRAFTS has one folder by
the name of each variant; without it they are written first.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import torch
import transformers
import variants
from safetensors.torch import save_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.rotary_partial import install_partial_neox_rotary


def logits(folder: Path, variant: str) -> torch.Tensor:
    """[NUM_STEPS, NUM_ROWS, Vd]. The model returns tokens only, so a hook takes what lm_head gives."""
    config = Eagle3SpeculatorConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"
    # The verifier only serves training, and a missing one is looked up on the hub. What the file lacks stays NaN.
    Eagle3DraftModel.load_verifier_weights = lambda _draft: None
    draft = Eagle3DraftModel.from_pretrained(str(folder), config=config, dtype=torch.float32).eval()
    aux, tokens = map(torch.from_numpy, variants.inputs(variant))
    found: list[torch.Tensor] = []
    draft.lm_head.register_forward_hook(lambda _module, _inputs, output: found.append(output[0]))
    with torch.no_grad():
        draft(
            hidden_states=aux[None],
            input_ids=tokens[None],
            document_ids=torch.zeros(1, variants.NUM_ROWS, dtype=torch.long),
            position_ids=torch.arange(variants.NUM_ROWS)[None],
            ttt_steps=variants.NUM_STEPS,
        )
    return torch.stack(found)


def main() -> None:
    output, *given = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    install_partial_neox_rotary()  # as its training command does; else transformers fails on a rope of part of the head
    with tempfile.TemporaryDirectory() as scratch:
        drafts = {name: (given or [Path(scratch)])[0] / name for name in variants.VARIANTS}
        if not given:
            for name, folder in drafts.items():
                variants.write(name, folder)
        found = {name: logits(folder, name).contiguous() for name, folder in drafts.items()}
    versions = {
        "speculators": importlib.metadata.version("speculators"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    save_file(found, output, metadata=versions)


if __name__ == "__main__":
    main()

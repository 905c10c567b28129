"""speculators' training-time-test forward as an evaluation, in its own environment: a worker that answers lines.

    python speculators_steps.py DRAFT SEQUENCES.safetensors NUM_STEPS

DRAFT is an export in its layout; SEQUENCES has ``tokens.i`` and ``states.i``. Any line runs the forward over all
sequences once; the answer has its seconds, wall and processor, and how many steps of each position were right one after
the other.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig


def main(folder: str, sequences_path: str, num_steps: str) -> None:
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"  # flex attention would have to be compiled
    Eagle3DraftModel.load_verifier_weights = lambda _draft: None  # it only serves the loss
    draft = Eagle3DraftModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    stored = load_file(sequences_path)
    sequences = [(stored[f"tokens.{i}"], stored[f"states.{i}"]) for i in range(len(stored) // 2)]
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        accepted = [right_steps(draft, *sequence, int(num_steps)) for sequence in sequences]
        seconds = (time.perf_counter() - wall, time.process_time() - cpu)
        print(json.dumps({"seconds": seconds, "accepted": accepted}), flush=True)


@torch.inference_mode()
def right_steps(draft: Eagle3DraftModel, tokens: torch.Tensor, states: torch.Tensor, num_steps: int) -> list[int]:
    """Of each row, the row of token i being i - 1, how many of its steps say what the record has, from the first on."""
    rows = len(tokens) - 1
    drafted = draft(
        hidden_states=states[None, :rows],
        input_ids=tokens[None, 1:],
        document_ids=torch.zeros(1, rows, dtype=torch.long),
        position_ids=torch.arange(rows)[None],
        ttt_steps=num_steps,
    )
    ends = torch.nn.functional.pad(tokens, (0, num_steps), value=-1)
    right = []
    for step, chosen in enumerate(drafted):
        ids = chosen[0] + draft.d2t[chosen[0]] if draft.d2t is not None else chosen[0]
        right.append(ids == ends[2 + step : 2 + step + rows])
    return torch.stack(right).int().cumprod(0).sum(0).tolist()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A draft of random weights and a trace that it half agrees with: a workload to time, not a model.

    python benchmarks/mid_size.py FOLDER

writes FOLDER/draft and FOLDER/trace. No target runs. The trace is what a target would leave behind that the draft
was trained on well: its next tokens are drawn from the draft's own probabilities, so that a probability of the draft
is also its chance to be right, and its residual streams are such that ``fc`` gives the state which the draft itself
would have passed on. A chain 3/1/4 commits about two tokens a round. Nothing else about the numbers means anything.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import eagle3ref as e3
from eagle3ref.nn import KVCache
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader, TraceWriter

CAPTURE_POINTS = (2, 16, 29)
NUM_LAYERS = 32  # of the target that is pretended
PROMPT_LENGTH = 16
BATCH_ROWS = 512  # sequences that are written side by side

NEW_TOPIC = 1 / 8  # how often a position's streams have nothing to do with the tokens before
OUTSIDE = 0.05  # how often the next token is any of the vocabulary
SHARPNESS = 8.0  # standard deviation of the logits


@dataclass(frozen=True)
class Size:
    """Sizes of a draft; the names are those of config.json."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    draft_vocab_size: int


MID_SIZE = Size(1024, 2816, 16, 8, 32000, 16000)
TINY = Size(64, 128, 4, 2, 512, 256)


def write_draft(folder: Path, size: Size = MID_SIZE, seed: int = 0) -> Path:
    """A draft of random weights as a folder that every loader of EAGLE-3 drafts reads."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(size.vocab_size, generator=generator)[: size.draft_vocab_size].sort().values
    tensors = random_weights(size, generator)
    tensors["d2t"] = ids - torch.arange(size.draft_vocab_size)
    tensors["t2d"] = torch.isin(torch.arange(size.vocab_size), ids)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(size), indent=1) + "\n", encoding="utf-8")
    return folder


def config_json(size: Size) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **vars(size),
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(CAPTURE_POINTS), "use_aux_hidden_state": True},
    }


def random_weights(size: Size, generator: torch.Generator) -> dict[str, Tensor]:
    """fp32, so scaled that states of size one give outputs of size one."""
    width, inner, head = size.hidden_size, size.intermediate_size, size.hidden_size // size.num_attention_heads

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (gain * columns**-0.5)

    keys = matrix(size.num_key_value_heads * head, 2 * width)
    # A query is much like the key of its own row, so that a row looks at itself first, and its token counts.
    queries = keys.view(-1, head, 2 * width).repeat_interleave(size.num_attention_heads // size.num_key_value_heads, 0)
    return {
        "fc.weight": matrix(width, len(CAPTURE_POINTS) * width),
        "embed_tokens.weight": torch.randn(size.vocab_size, width, generator=generator),
        "midlayer.input_layernorm.weight": torch.ones(width),
        "midlayer.hidden_norm.weight": torch.ones(width),
        "midlayer.post_attention_layernorm.weight": torch.ones(width),
        "midlayer.self_attn.q_proj.weight": queries.flatten(0, 1) + matrix(width, 2 * width, 0.3),
        "midlayer.self_attn.k_proj.weight": keys,
        "midlayer.self_attn.v_proj.weight": matrix(size.num_key_value_heads * head, 2 * width),
        "midlayer.self_attn.o_proj.weight": matrix(width, width),
        "midlayer.mlp.gate_proj.weight": matrix(inner, width),
        "midlayer.mlp.up_proj.weight": matrix(inner, width),
        "midlayer.mlp.down_proj.weight": matrix(width, inner),
        "norm.weight": torch.ones(width),
        "lm_head.weight": matrix(size.draft_vocab_size, width, SHARPNESS),
    }


def write_trace(
    draft: e3.Eagle3Draft, folder: Path, num_sequences: int = 200, num_tokens: int = 512, seed: int = 0
) -> e3.Trace:
    """A trace of ``num_sequences`` times ``num_tokens`` tokens in bfloat16, the first 16 of each its prompt."""
    config = draft.config
    header = TraceHeader(
        target=TargetIdentity(
            "a workload", str(folder), "none", NUM_LAYERS, config.target_hidden_size, config.vocab_size, "0" * 64
        ),
        tokenizer_sha256=None,
        capture_points=CAPTURE_POINTS,
        dtype="bfloat16",
        sampling=RecordedSampling(temperature=0.0, top_p=1.0, top_k=0, seed=seed),
        engine="benchmarks/mid_size.py",
    )
    generator = torch.Generator().manual_seed(seed)
    with TraceWriter.open(folder, header) as writer:
        for first in range(0, num_sequences, BATCH_ROWS):
            tokens, states = agreeing(draft, min(BATCH_ROWS, num_sequences - first), num_tokens, generator)
            inverse = torch.linalg.pinv(draft.fc.weight)
            for i in range(len(tokens)):
                streams = fused_to(draft, inverse, states[i], generator)
                writer.add(RecordedSequence(f"sequence-{first + i}", tokens[i], PROMPT_LENGTH, streams))
    return e3.Trace.open(folder)


def agreeing(draft: e3.Eagle3Draft, batch: int, num_tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """tokens int64 [B, T], and what ``fc`` must make of their streams, [B, T, C].

    Row p takes states[p] and token p + 1. Token p + 2 is drawn from what it proposes, and states[p + 1] is what it
    leaves, but for new topics. States grow with every row that passes one on, as they do in a draft loop.
    """
    size = draft.config.hidden_size
    tokens = torch.randint(draft.config.vocab_size, (batch, num_tokens), generator=generator)
    states = torch.randn(batch, num_tokens, size, generator=generator)
    new_topic = torch.rand(batch, num_tokens, generator=generator) < NEW_TOPIC
    outside = torch.rand(batch, num_tokens, generator=generator) < OUTSIDE
    cache = KVCache(len(draft.layers), batch)
    first, itself = torch.zeros(batch, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool)
    for row in range(num_tokens - 1):
        place = torch.full((batch, 1, 1), row)
        output = draft(
            states[:, row, None, None], tokens[:, row + 1, None, None], place, mask=itself, prefix=cache.prefixes()
        )
        cache.offer(output.rows)
        cache.keep(first, first[:, 0] + 1)
        states[:, row + 1] = output.state[:, 0, 0].where(~new_topic[:, row + 1, None], states[:, row + 1])
        if row + 2 < num_tokens:
            probs = draft.logits(output.normed[:, 0, 0]).softmax(-1)
            drawn = draft.target_ids[probs.multinomial(1, generator=generator)[:, 0]]
            tokens[:, row + 2] = drawn.where(~outside[:, row + 2], tokens[:, row + 2])
    return tokens, states


def fused_to(draft: e3.Eagle3Draft, inverse: Tensor, states: Tensor, generator: torch.Generator) -> dict[int, Tensor]:
    """Streams [T, C] of each capture point, otherwise random, that ``fc`` fuses to states [T, C], as bfloat16."""
    noise = torch.randn(len(states), draft.fc.in_features, generator=generator)
    streams = noise + (states - draft.fuse(noise)) @ inverse.T
    return dict(zip(CAPTURE_POINTS, streams.bfloat16().chunk(len(CAPTURE_POINTS), -1), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=512, help="of each sequence")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draft = e3.load_draft(write_draft(arguments.folder / "draft", seed=arguments.seed))
    write_trace(draft, arguments.folder / "trace", arguments.sequences, arguments.tokens, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

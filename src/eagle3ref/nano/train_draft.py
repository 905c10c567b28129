"""Training of the nano drafts: EAGLE-3's training-time test on the target's own answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from eagle3ref.config import DraftConfig, GQAConfig, RopeConfig
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.draft import Eagle3Draft
from eagle3ref.nano.train_target import ARCHITECTURE, ATTENTION, learning_rate_share
from eagle3ref.nn import Prefix, Rows
from eagle3ref.target import Target

DRAFT_VOCAB_SIZE = 640
CAPTURE_IDS = (1, 3, 4)  # outputs of these layers, i.e. capture points 2, 4, 5 = 2, n // 2, n - 3
CAPTURE_POINTS = (2, 4, 5)
TEST_STEPS = 5  # of the training-time test, the first on target states
BATCH = 8
PEAK_LEARNING_RATE = 2e-3

_GQA = DraftConfig(
    architecture="LlamaForCausalLMEagle3",
    hidden_size=ARCHITECTURE.hidden_size,
    target_hidden_size=ARCHITECTURE.hidden_size,
    intermediate_size=512,
    vocab_size=ARCHITECTURE.vocab_size,
    draft_vocab_size=DRAFT_VOCAB_SIZE,
    shares_target_lm_head=False,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    attention=GQAConfig(5, 1, 32, RopeConfig(32, 10000.0)),
    capture_ids=CAPTURE_IDS,
    capture_ids_key=f"eagle_config.{CAPTURE_IDS_KEY}",
)
CONFIGS = {
    "gqa": _GQA,
    "mla": replace(_GQA, architecture="Eagle3DeepseekV2ForCausalLM", attention=ATTENTION),
}


def frequent_tokens(sequences: Sequence[Tensor], count: int, vocab_size: int) -> Tensor:
    """The ``count`` most frequent token ids, ascending: the draft vocabulary."""
    counts = torch.bincount(torch.cat(list(sequences)), minlength=vocab_size)
    return counts.topk(count).indices.sort().values


def new_draft(kind: str, target: Target, target_ids: Tensor, seed: int) -> Eagle3Draft:
    """A draft with seeded random weights; its embedding is the target's and its head starts as the target's."""
    torch.manual_seed(seed)
    draft = Eagle3Draft(CONFIGS[kind], 1, CAPTURE_POINTS, target_ids)
    for parameter in draft.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head()[target_ids])
    draft.embed_tokens.weight = nn.Parameter(target.embedding().clone(), requires_grad=False)
    return draft


def train_draft(
    draft: Eagle3Draft,
    target: Target,
    sequences: Tensor,
    steps: int,
    seed: int,
    report: Callable[[int, float], None],
) -> Eagle3Draft:
    """Train on the target's answers.

    Args:
        draft: from ``new_draft``.
        target: gives the states and the distribution to imitate.
        sequences: int64 [N, T], prompt and answer.
        steps: optimizer steps of ``BATCH`` sequences.
        seed: of the order.
        report: called with (step, loss).
    """
    generator = torch.Generator().manual_seed(seed)
    trained = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * learning_rate_share(step, steps)
        batch = sequences[torch.randint(len(sequences), (BATCH,), generator=generator)]
        losses, _ = training_time_test(draft, target, batch)
        # Deeper steps count a little less: fewer rounds reach them.
        loss = sum(0.9**depth * value for depth, value in enumerate(losses))
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        report(step, loss.item())
    return draft.requires_grad_(False).eval()


def training_time_test(draft: Eagle3Draft, target: Target, tokens: Tensor) -> tuple[list[Tensor], list[float]]:
    """Losses and top-1 agreements of ``TEST_STEPS`` draft steps from every position at once.

    The rows are those of a replay: step 0 is the causal pass over target states; afterwards every root L is a group
    that sees the prefix rows 0 .. L-1 and its own rows, and is fed the recurrent state and the true tokens
    (EAGLE-3, arXiv 2503.01840, §3.2).
    """
    with torch.no_grad():
        output = target.forward(tokens, capture_points=draft.capture_points)
        wanted = target.logits(output.final_hidden_state)[..., draft.target_ids]  # [B, T, Vd]
        aux = torch.cat([output.aux_hidden_states[point] for point in draft.capture_points], -1)
    length = tokens.shape[1] - TEST_STEPS  # rows 0 .. length-1; every step has its true tokens and targets
    row = torch.arange(length)
    first = draft(
        draft.fuse(aux[:, :length]).unsqueeze(1),
        tokens[:, None, 1 : length + 1],
        row.expand(len(tokens), 1, length),
        mask=row[:, None] >= row,
    )
    losses: list[Tensor] = []
    agreement: list[float] = []
    _score(draft, first.normed[:, 0], wanted[:, 1 : length + 1], losses, agreement)
    prefix = [Prefix(Rows(rows.first[:, 0], rows.second[:, 0]), (row[:, None] >= row)[:, None]) for rows in first.rows]
    state, own = first.state[:, 0].unsqueeze(2), None  # groups are the roots 1 .. length
    roots = (row + 1).expand(len(tokens), length).unsqueeze(-1)
    for step in range(1, TEST_STEPS):
        inputs = tokens[:, step + 1 : step + 1 + length].unsqueeze(-1)
        seen = torch.ones(1, step, dtype=torch.bool)
        output_step = draft(state, inputs, roots + step - 1, mask=seen, own=own, prefix=prefix)
        state, own = output_step.state, output_step.rows
        _score(draft, output_step.normed[:, :, 0], wanted[:, step + 1 : step + 1 + length], losses, agreement)
    return losses, agreement


def _score(draft: Eagle3Draft, normed: Tensor, wanted: Tensor, losses: list[Tensor], agreement: list[float]) -> None:
    """Cross-entropy to the target's distribution over the draft vocabulary, and how often the best tokens agree."""
    logits = draft.logits(normed)
    losses.append(functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1).softmax(-1)))
    agreement.append(float((logits.argmax(-1) == wanted.argmax(-1)).float().mean()))

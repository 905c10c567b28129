"""SafeAILab's own draft code (github.com/SafeAILab/EAGLE), driven along a trace as its generation loop drives it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

import eagle3ref as e3
from eagle3ref.trace import RecordedSequence


class SafeAILabDraft:
    """``topK_genrate`` of eagle/model/cnets.py with the tensors of one of our drafts.

    Args:
        folder: a checkout of the repository.
        draft: GQA, one layer, in fp32; its tensors are shared, not copied.
        tree: ``num_steps`` is the depth plus one, and ``num_draft_tokens`` is ``total_tokens``.
    """

    def __init__(self, folder: Path, draft: e3.Eagle3Draft, tree: e3.TreeConfig) -> None:
        model = _cnets(folder).Model(
            _config(draft),
            total_tokens=tree.num_draft_tokens,
            depth=tree.num_steps - 1,
            top_k=tree.topk,
        )
        theirs = {name.replace("layers.0.", "midlayer."): value for name, value in draft.state_dict().items()}
        d2t = draft.target_ids - torch.arange(len(draft.target_ids))
        missing = model.load_state_dict({**theirs, "d2t": d2t}, strict=False, assign=True).missing_keys
        if set(missing) != {"t2d"}:  # only its training reads it
            raise RuntimeError(f"SafeAILab's draft has tensors that ours has not: {missing}")
        self.model = model.requires_grad_(False).eval()
        self.model.init_tree()

    @torch.no_grad()
    def accepted(self, tokens: Tensor, states: Tensor, root: int) -> list[int]:
        """Drafts accepted in each round of a sequence, from the root ``root`` on to the last with a token after it.

        Args:
            tokens: int64 [T].
            states: fp32 [T, A * Ct], what its target would hand over; a round gets the rows of what was accepted.
        """
        self.model.reset_kv()
        rounds, first = [], 0
        while root + 1 < len(tokens):
            drafts, paths, _mask, _positions = self.model.topK_genrate(
                states[None, first:root], tokens[None, : root + 1], None, None
            )
            candidates = torch.cat((drafts, drafts.new_full((1, 1), -1)), 1)[0, paths]
            rounds.append(_accept(candidates, tokens[root:]))
            first, root = root, root + rounds[-1] + 1
        return rounds


def states_of(sequence: RecordedSequence, draft: e3.Eagle3Draft) -> Tensor:
    """[T, A * Ct] fp32, as the target of the loop would have them in memory."""
    return torch.cat([sequence.aux_hidden_states[point] for point in draft.capture_points], -1).float()


def _accept(candidates: Tensor, recorded: Tensor) -> int:
    """As its ``evaluate_posterior`` at temperature 0; along any path that it can keep, the target says the record."""
    drafts = candidates[:, 1:][:, : len(recorded) - 1]
    agrees = (drafts == recorded[1 : 1 + drafts.shape[1]]).int()
    return int(agrees.cumprod(1).sum(1).max())


def _config(draft: e3.Eagle3Draft) -> SimpleNamespace:
    config, attention = draft.config, draft.config.attention
    if attention.head_dim * attention.num_heads != config.hidden_size:
        raise RuntimeError("SafeAILab's draft has heads of hidden_size / num_heads features only")
    # Not its own class of settings, whose rope_scaling the transformers of today fills in.
    return SimpleNamespace(
        vocab_size=config.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        hidden_size=config.hidden_size,
        target_hidden_size=config.target_hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=attention.num_heads,
        num_key_value_heads=attention.num_kv_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=attention.rope.theta,
        rope_scaling=None,
        max_position_embeddings=4096,
        pad_token_id=0,
        hidden_act="silu",
        pretraining_tp=1,
    )


def _cnets(folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module("eagle.model.cnets")

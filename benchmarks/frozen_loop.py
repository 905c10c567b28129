"""The draft side of speculative decoding as a person would first write it. Frozen: ``guard.py`` measures against it.

One sequence, one round, one pass after the other, in plain PyTorch, with nothing of the library in it but the tensors
of a draft. It is right, and it is not to be made faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

import eagle3ref as e3
from eagle3ref.tree import Candidates


class FrozenLoop:
    """Drafts and verifies along a trajectory.

    Args:
        draft: GQA, one layer, plain settings, as ``mid_size.write_draft`` makes it.
    """

    def __init__(self, draft: e3.Eagle3Draft) -> None:
        attention = draft.config.attention
        self.heads, self.kv_heads, self.size = attention.num_heads, attention.num_kv_heads, attention.head_dim
        self.theta, self.eps, self.target_ids = attention.rope.theta, draft.config.rms_norm_eps, draft.target_ids
        self.weights = {name.replace("layers.0.", ""): value for name, value in draft.state_dict().items()}

    @torch.inference_mode()
    def accepted(self, tokens: Tensor, states: Tensor, root: int, tree: e3.TreeConfig) -> list[int]:
        """Drafts accepted in each round; ``tree`` with the true ancestors' rows.

        Args:
            tokens: int64 [T].
            states: [T, A * Ct].
            root: token index of the first.
        """
        rounds, first = [], 0
        rows = (torch.zeros(0, self.kv_heads, self.size), torch.zeros(0, self.kv_heads, self.size))
        while root + 1 < len(tokens):
            positions = torch.arange(first, root)
            fused = states[first:root] @ self.weights["fc.weight"].T
            causal = torch.arange(root) <= positions[:, None]
            state, rows = self.forward(fused, tokens[first + 1 : root + 1], positions, rows, causal)
            candidates = self.candidates(state[-1], root, rows, tree)
            rounds.append(follow(candidates, tokens[root + 1 :].tolist(), tree.num_draft_tokens - 1))
            first, root = root, root + rounds[-1] + 1
        return rounds

    def candidates(self, state: Tensor, root: int, rows: tuple[Tensor, Tensor], tree: e3.TreeConfig) -> Candidates:
        """All that the draft loop scores from the state of the row before a root."""
        topk = tree.topk
        scores, tokens = self.best(state[None], topk)
        scores, tokens, state = scores[0], tokens[0], state.expand(topk, -1)
        beams = torch.arange(topk)
        scored = [(scores, tokens, torch.full_like(tokens, -1))]
        own = torch.zeros(topk, 0, dtype=torch.bool)  # which rows of this round each beam descends from
        for step in range(tree.num_steps - 1):
            own = torch.cat((own, torch.eye(topk, dtype=torch.bool)), 1)
            seen = torch.cat((torch.ones(topk, root, dtype=torch.bool), own), 1)
            state, rows = self.forward(state, tokens, torch.full((topk,), root + step), rows, seen)
            probs, children = self.best(state, topk)
            children_scores = (scores[:, None] * probs).flatten()
            scored.append((children_scores, children.flatten(), beams.repeat_interleave(topk)))
            chosen = children_scores.argsort(descending=True, stable=True)[:topk]
            start = topk + step * topk**2
            scores, tokens, beams = children_scores[chosen], children.flatten()[chosen], start + chosen
            state, own = state[chosen // topk], own[chosen // topk]
        return Candidates(*(torch.cat(parts)[None] for parts in zip(*scored, strict=True)))

    def best(self, state: Tensor, topk: int) -> tuple[Tensor, Tensor]:
        """Probabilities and target ids [n, K] of the next tokens."""
        logits = self.norm(state, "norm") @ self.weights["lm_head.weight"].T
        probs, chosen = logits.softmax(-1).topk(topk)
        return probs, self.target_ids[chosen]

    def forward(
        self, state: Tensor, tokens: Tensor, positions: Tensor, rows: tuple[Tensor, Tensor], seen: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The layer over n rows [n, C], which see ``seen`` [n, all rows] of the rows before and themselves."""
        embedded = self.norm(self.weights["embed_tokens.weight"][tokens], "input_layernorm")
        x = torch.cat((embedded, self.norm(state, "hidden_norm")), -1)
        query = self.rotate((x @ self.weights["self_attn.q_proj.weight"].T).view(-1, self.heads, self.size), positions)
        key = self.rotate((x @ self.weights["self_attn.k_proj.weight"].T).view(-1, self.kv_heads, self.size), positions)
        value = (x @ self.weights["self_attn.v_proj.weight"].T).view(-1, self.kv_heads, self.size)
        keys, values = torch.cat((rows[0], key)), torch.cat((rows[1], value))
        share = self.heads // self.kv_heads
        scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(share, 1)) * self.size**-0.5
        probs = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", probs, values.repeat_interleave(share, 1)).flatten(1)
        state = state + attended @ self.weights["self_attn.o_proj.weight"].T
        x = self.norm(state, "post_attention_layernorm")
        gate = torch.nn.functional.silu(x @ self.weights["mlp.gate_proj.weight"].T)
        up = x @ self.weights["mlp.up_proj.weight"].T
        return state + (gate * up) @ self.weights["mlp.down_proj.weight"].T, (keys, values)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        frequencies = 1 / self.theta ** (torch.arange(0, self.size, 2) / self.size)
        angles = positions[:, None, None] * frequencies
        first, second = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def follow(candidates: Candidates, recorded: list[int], num_chosen: int) -> int:
    """How many recorded tokens the tree of the best candidates of one sequence holds, one below the other."""
    chosen = set(candidates.scores[0].argsort(descending=True, stable=True)[:num_chosen].tolist())
    tokens, parents = candidates.tokens[0].tolist(), candidates.parents[0].tolist()
    node = -1
    for depth, token in enumerate(recorded):
        below = [i for i in sorted(chosen) if parents[i] == node and tokens[i] == token]
        if not below:
            return depth
        node = below[0]
    return len(recorded)


def build_trees(candidates: Candidates, num_draft_tokens: int) -> tuple[Tensor, Tensor]:
    """Parents int64 [B, N] and masks bool [B, N, N], tree after tree and node after node."""
    all_parents, masks = [], []
    for b in range(len(candidates.scores)):
        chosen = sorted(candidates.scores[b].argsort(descending=True, stable=True)[: num_draft_tokens - 1].tolist())
        node_of = {-1: 0} | {flat: node for node, flat in enumerate(chosen, 1)}
        parents = [-1] + [node_of[int(candidates.parents[b, flat])] for flat in chosen]
        mask = torch.eye(num_draft_tokens, dtype=torch.bool)
        for node, parent in enumerate(parents[1:], 1):
            mask[node] |= mask[parent]
        all_parents.append(torch.tensor(parents))
        masks.append(mask)
    return torch.stack(all_parents), torch.stack(masks)

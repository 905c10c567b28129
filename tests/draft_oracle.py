"""An EAGLE-3 forward written again in fp64, from plain tensors and row by row; nothing from the package."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

PREFIX, STEPS = 6, 5


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean() + eps).sqrt()


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


class Oracle:
    """Every earlier row is kept as plain per-head keys and values.

    Args:
        config: flat config.json keys; also ``final_norm``, ``hidden_double_norm`` and ``windows`` (of each layer).
        tensors: SpecForge's or Kimi's names; later layers call the norm before attention input_layernorm.
        num_layers: decoder layers.
    """

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], num_layers: int = 1) -> None:
        self.config, self.num_layers = config, num_layers
        by_key = "head+state" if config.get("norm_output") else "head"
        self.final_norm = config.get("final_norm", by_key)
        self.gqa = "kv_lora_rank" not in config
        self.tensors = {
            name.replace("midlayer.", "layers.0."): value.double()
            for name, value in tensors.items()
            if value.is_floating_point()
        }
        self.seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(num_layers)]

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.tensors.get(f"{name}.bias")
        out = torch.einsum("oi,i->o", self.tensors[f"{name}.weight"], x)
        return out if bias is None else out + bias

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])

    def fuse(self, aux: list[Tensor]) -> Tensor:
        if self.config.get("norm_before_fc"):
            whole = self.norm("input_norm", torch.cat(aux))
            aux = [whole[: len(aux[0])], whole[len(aux[0]) : 2 * len(aux[0])], whole[2 * len(aux[0]) :]]
        if self.config.get("fc_norm"):
            aux = [self.norm(f"fc_norm.{i}", state) for i, state in enumerate(aux)]
        return self.linear("fc", torch.cat(aux))

    def step(self, state: Tensor, token: int, position: int) -> tuple[Tensor, Tensor]:
        """(recurrent state, logits) of one more row behind all earlier ones."""
        for i in range(self.num_layers):
            layer = f"layers.{i}."
            if i == 0:
                embedded = self.norm(layer + "input_layernorm", self.tensors["embed_tokens.weight"][token])
                twice = self.config.get("hidden_double_norm")
                inner = self.norm(layer + "input_layernorm", state) if twice else state
                hidden = self.norm(layer + "hidden_norm", inner)
                residual = hidden if self.config.get("norm_before_residual") else state
                x = torch.cat((embedded, hidden))
            else:
                residual, x = state, self.norm(layer + "input_layernorm", state)
            y = residual + self.attention(i, x, position)
            z = self.norm(layer + "post_attention_layernorm", y)
            gate, up = (self.linear(f"{layer}mlp.{part}_proj", z) for part in ("gate", "up"))
            state = y + self.linear(f"{layer}mlp.down_proj", silu(gate) * up)
        normed = self.norm("norm", state)
        read = state if self.final_norm == "none" else normed
        logits = self.linear("lm_head", read) * self.config.get("logit_scale", 1)
        return (normed if self.final_norm == "head+state" else state), logits

    def attention(self, layer: int, x: Tensor, position: int) -> Tensor:
        query, key, value, scale = (self.llama if self.gqa else self.mla)(f"layers.{layer}.self_attn.", x, position)
        self.seen[layer].append((key, value))
        window = (self.config.get("windows") or [None] * self.num_layers)[layer]
        visible = self.seen[layer] if window is None else self.seen[layer][-window:]
        heads = []
        for head, q in enumerate(query):
            weights = torch.stack([keys[head] @ q * scale for keys, _ in visible]).exp()
            shares = zip(weights / weights.sum(), visible, strict=True)
            heads.append(sum(share * values[head] for share, (_, values) in shares))
        return self.linear(f"layers.{layer}.self_attn.o_proj", torch.cat(heads))

    def llama(self, name: str, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor, float]:
        heads, size = self.config["num_attention_heads"], self.config["head_dim"]
        repeat = heads // self.config["num_key_value_heads"]
        query, key, value = (self.linear(f"{name}{part}_proj", x).reshape(-1, size) for part in "qkv")
        if f"{name}q_norm.weight" in self.tensors:
            query = torch.stack([self.norm(f"{name}q_norm", q) for q in query])
            key = torch.stack([self.norm(f"{name}k_norm", k) for k in key])
        rotated = int(size * self.config.get("partial_rotary_factor", 1))
        pairs = [(i, i + rotated // 2) for i in range(rotated // 2)]
        turned_query = [torch.cat((self.rotate(q[:rotated], position, pairs), q[rotated:])) for q in query]
        turned_key = [torch.cat((self.rotate(k[:rotated], position, pairs), k[rotated:])) for k in key]
        keys = torch.stack([turned_key[head // repeat] for head in range(heads)])
        values = torch.stack([value[head // repeat] for head in range(heads)])
        return torch.stack(turned_query), keys, values, size**-0.5

    def mla(self, name: str, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor, float]:
        config, heads = self.config, self.config["num_attention_heads"]
        nope, rope, rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
        pairs = [(2 * i, 2 * i + 1) for i in range(rope // 2)]
        if config.get("rope_interleave") is False:
            pairs = [(i, i + rope // 2) for i in range(rope // 2)]
        if config.get("q_lora_rank"):
            query = self.linear(f"{name}q_b_proj", self.norm(f"{name}q_a_layernorm", self.linear(f"{name}q_a_proj", x)))
        else:
            query = self.linear(f"{name}q_proj", x)
        query = query.reshape(heads, nope + rope)
        query = torch.stack([torch.cat((q[:nope], self.rotate(q[nope:], position, pairs))) for q in query])
        compressed = self.linear(f"{name}kv_a_proj_with_mqa", x)
        shared_key = self.rotate(compressed[rank:], position, pairs)
        up = self.linear(f"{name}kv_b_proj", self.norm(f"{name}kv_a_layernorm", compressed[:rank])).reshape(heads, -1)
        keys = torch.stack([torch.cat((head[:nope], shared_key)) for head in up])
        scaling = config.get("rope_scaling") or {}
        mscale = 0.1 * scaling.get("mscale_all_dim", 0) * math.log(scaling.get("factor", 1)) + 1
        if config.get("plain_softmax_scale"):
            mscale = 1
        return query, keys, up[:, nope:], (nope + rope) ** -0.5 * mscale**2

    def rotate(self, x: Tensor, position: int, pairs: list[tuple[int, int]]) -> Tensor:
        out, stretch = torch.empty_like(x), self.stretch()
        for i, (a, b) in enumerate(pairs):
            angle = position * self.frequency(i, len(x))
            out[a] = (x[a] * math.cos(angle) - x[b] * math.sin(angle)) * stretch
            out[b] = (x[b] * math.cos(angle) + x[a] * math.sin(angle)) * stretch
        return out

    def stretch(self) -> float:
        scaling = self.config.get("rope_scaling") or {}
        if "attention_factor" in scaling:
            return float(scaling["attention_factor"])
        if scaling.get("type", scaling.get("rope_type")) != "yarn" or scaling.get("mscale_all_dim"):
            return 1.0  # mscale / mscale_all_dim are equal here
        return 0.1 * math.log(scaling["factor"]) + 1

    def frequency(self, i: int, dim: int) -> float:
        theta, scaling = self.config["rope_theta"], self.config.get("rope_scaling") or {}
        base = theta ** (-2 * i / dim)
        kind, factor = scaling.get("type", scaling.get("rope_type")), scaling.get("factor")
        if kind == "llama3":
            turns = scaling["original_max_position_embeddings"] * base / (2 * math.pi)
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            share = min(max((turns - low) / (high - low), 0), 1)
            return base * share + base / factor * (1 - share)
        if kind == "yarn":
            original = scaling["original_max_position_embeddings"]
            ends = [
                dim * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(theta))
                for beta in (scaling["beta_fast"], scaling["beta_slow"])
            ]
            if scaling.get("truncate", True):
                ends = [math.floor(ends[0]), math.ceil(ends[1])]
            low, high = max(ends[0], 0), min(ends[1], dim - 1)
            share = min(max((i - low) / (high - low), 0), 1)
            return base * (1 - share) + base / factor * share
        return base / factor if kind == "linear" else base


def run_draft(draft: Any, aux: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(state, logits) of the last prefix row and of four further rows, on the package's batched forward."""
    row = torch.arange(PREFIX)
    output = draft(draft.fuse(aux)[None, None], tokens[None, None, :PREFIX], row[None, None], mask=row[:, None] >= row)
    results, own = [(output.state[0, 0, -1], draft.logits(output.normed[0, 0, -1]))], output.rows
    for step in range(1, STEPS):
        at = PREFIX - 1 + step
        output = draft(
            results[-1][0][None, None, None],
            tokens[None, None, at : at + 1],
            torch.tensor([[[at]]]),
            mask=torch.ones(1, at + 1, dtype=torch.bool),
            own=own,
        )
        own = output.rows
        results.append((output.state[0, 0, 0], draft.logits(output.normed[0, 0, 0])))
    return results


def assert_same_network(draft: Any, oracle: Oracle) -> None:
    """Five steps of a draft in fp64, on random aux hidden states and tokens, equal the oracle's."""
    generator = torch.Generator().manual_seed(1)
    width = oracle.config.get("target_hidden_size") or oracle.config["hidden_size"]
    aux = [torch.randn(PREFIX, width, dtype=torch.float64, generator=generator) * 2 for _ in range(3)]
    tokens = torch.randint(oracle.config["vocab_size"], (PREFIX + STEPS,), generator=generator)
    for row in range(PREFIX):
        state, logits = oracle.step(oracle.fuse([states[row] for states in aux]), int(tokens[row]), row)
    for step, (got_state, got_logits) in enumerate(run_draft(draft, torch.cat(aux, -1), tokens)):
        if step:
            state, logits = oracle.step(state, int(tokens[PREFIX - 1 + step]), PREFIX - 1 + step)
        # The package's frequencies are fp32, as in every engine.
        torch.testing.assert_close(got_state, state, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got_logits, logits, rtol=1e-5, atol=1e-5)

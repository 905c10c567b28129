"""Eagle3Draft against an EAGLE-3 forward written again in fp64 from the file's tensors, row by row, for five steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from eagle3ref.draft import load_draft
from eagle3ref.errors import Eagle3RefError

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

EPS = 1e-5


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean() + EPS).sqrt()


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


class Oracle:
    """One sequence, one row at a time; every earlier row is kept as plain per-head keys and values."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], num_layers: int) -> None:
        self.config, self.num_layers = config, num_layers
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
        return rms(x, self.tensors[f"{name}.weight"])

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
                hidden = self.norm(layer + "hidden_norm", state)
                residual = hidden if self.config.get("norm_before_residual") else state
                x = torch.cat((embedded, hidden))
            else:
                residual, x = state, self.norm(layer + "input_layernorm", state)
            y = residual + self.attention(i, x, position)
            z = self.norm(layer + "post_attention_layernorm", y)
            gate, up = (self.linear(f"{layer}mlp.{part}_proj", z) for part in ("gate", "up"))
            state = y + self.linear(f"{layer}mlp.down_proj", silu(gate) * up)
        normed = self.norm("norm", state)
        return (normed if self.config.get("norm_output") else state), self.linear("lm_head", normed)

    def attention(self, layer: int, x: Tensor, position: int) -> Tensor:
        query, key, value, scale = (self.llama if self.gqa else self.mla)(f"layers.{layer}.self_attn.", x, position)
        self.seen[layer].append((key, value))
        heads = []
        for head, q in enumerate(query):
            weights = torch.stack([keys[head] @ q * scale for keys, _ in self.seen[layer]]).exp()
            shares = zip(weights / weights.sum(), self.seen[layer], strict=True)
            heads.append(sum(share * values[head] for share, (_, values) in shares))
        return self.linear(f"layers.{layer}.self_attn.o_proj", torch.cat(heads))

    def llama(self, name: str, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor, float]:
        heads, size = self.config["num_attention_heads"], self.config["head_dim"]
        repeat = heads // self.config["num_key_value_heads"]
        query, key, value = (self.linear(f"{name}{part}_proj", x).reshape(-1, size) for part in "qkv")
        turned_query = [self.rotate(q, position, pairs=[(i, i + size // 2) for i in range(size // 2)]) for q in query]
        turned_key = [self.rotate(k, position, pairs=[(i, i + size // 2) for i in range(size // 2)]) for k in key]
        keys = torch.stack([turned_key[head // repeat] for head in range(heads)])
        values = torch.stack([value[head // repeat] for head in range(heads)])
        return torch.stack(turned_query), keys, values, size**-0.5

    def mla(self, name: str, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor, float]:
        config, heads = self.config, self.config["num_attention_heads"]
        nope, rope, rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
        pairs = [(2 * i, 2 * i + 1) for i in range(rope // 2)]
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
            low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), dim - 1)
            share = min(max((i - low) / (high - low), 0), 1)
            return base * (1 - share) + base / factor * share
        return base / (factor or 1)


GQA_YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "norm_output": {"norm_output": True},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True, "bias": True},
    "norm_before_residual": {"norm_before_residual": True},
    "attention_bias": {"attention_bias": True, "mlp_bias": True},
    "qkv_bias": {"qkv_bias": True},
    "two layers": {"num_layers": 2, "norm_output": True},
    "llama3": {"rope_scaling": tiny.LLAMA3, "head_dim": 16},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": GQA_YARN, "head_dim": 16},
    "one key head": {"num_key_value_heads": 1},
    "wider target": {"target_hidden_size": 40},
    "mla": {"kind": "mla"},
    "mla yarn": {"kind": "mla", "rope_scaling": tiny.YARN, "rope_theta": 50000.0},
    "mla without q_lora": {"kind": "mla", "q_lora_rank": None},
    "mla 3.1": {"kind": "mla", "fc_norm": True, "norm_output": True, "rope_scaling": tiny.YARN},
    "mla two layers": {"kind": "mla", "num_layers": 2},
}
PREFIX, STEPS = 6, 5


def run_draft(draft, aux: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_five_steps_equal_the_oracle(variant, tmp_path):
    """Bug: a wrong residual, norm, rope, scale, head order or recurrence, in any of the published variants."""
    keys = dict(VARIANTS[variant])
    config, tensors = tiny.draft_parts(**keys)
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    width = config.get("target_hidden_size") or tiny.WIDTH
    aux = [torch.randn(PREFIX, width, dtype=torch.float64) * 2 for _ in range(3)]
    tokens = torch.randint(tiny.VOCAB, (PREFIX + STEPS,))
    oracle = Oracle(config, tensors, keys.get("num_layers", 1))
    for row in range(PREFIX):
        state, logits = oracle.step(oracle.fuse([states[row] for states in aux]), int(tokens[row]), row)
    for step, (got_state, got_logits) in enumerate(run_draft(draft, torch.cat(aux, -1), tokens)):
        if step:
            state, logits = oracle.step(state, int(tokens[PREFIX - 1 + step]), PREFIX - 1 + step)
        # The package's frequencies are fp32, as in every engine.
        torch.testing.assert_close(got_state, state, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got_logits, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("key", ["norm_output", "norm_before_residual"])
def test_switches_without_tensors_do_something(key, tmp_path):
    """Bug: a key that is read and ignored; nothing in the tensors would tell."""
    aux, tokens = torch.randn(PREFIX, 3 * tiny.WIDTH), torch.arange(PREFIX + STEPS)
    off, on = (
        run_draft(load_draft(tiny.draft_folder(tmp_path / str(value), **{key: value})), aux, tokens)
        for value in (False, True)
    )
    assert torch.equal(off[0][1], on[0][1]) == (key == "norm_output")
    assert (off[1][1] - on[1][1]).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_half_precision_stays_close_to_fp64(kind, dtype, tmp_path):
    """Bug: softmax, variance or angles in half precision; a wrong promotion that changes the output's dtype."""
    folder = tiny.draft_folder(tmp_path, kind)
    aux, tokens = torch.randn(PREFIX, 3 * tiny.WIDTH), torch.arange(PREFIX + STEPS)
    low = run_draft(load_draft(folder, dtype=dtype), aux.to(dtype), tokens)
    rounded = load_draft(folder, dtype=dtype).double()
    exact = run_draft(rounded, aux.to(dtype).double(), tokens)
    step = torch.finfo(dtype).eps
    for (state, logits), (exact_state, exact_logits) in zip(low, exact, strict=True):
        assert (state.dtype, logits.dtype) == (dtype, dtype)
        assert (state.double() - exact_state).abs().max() < 6 * step * exact_state.abs().max()
        assert (logits.double() - exact_logits).abs().max() < 6 * step * exact_logits.abs().max()


def test_a_single_state_into_fc_is_refused_and_names_the_flag(tmp_path):
    """Bug: SGLang's bypass of fc when the widths match the embedding's: accept len 1.00 without a word."""
    draft = load_draft(tiny.draft_folder(tmp_path))
    with pytest.raises(Eagle3RefError, match="states 32 wide; expected 96 wide.*--speculative-algorithm EAGLE "):
        draft.fuse(torch.zeros(1, 4, 32))
    with pytest.raises(Eagle3RefError, match="states 64 wide; expected 96 wide.*Record the capture points"):
        draft.fuse(torch.zeros(64))

"""A speculative server with faults, written on its own: one request at a time, the target in the loop, row by row.

It reads the draft's files itself, runs the draft from plain tensors, and knows nothing of records or replays. Each
fault is put in where an engine would have it. The names are those of the laboratory's hypotheses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from draft_oracle import Oracle
from oracles import best, fp32
from safetensors.torch import load_file
from scipy.linalg import hadamard
from torch import Tensor

import eagle3ref as e3

NTH = {"first": 0, "second": 1, "third": 2}


class Row(NamedTuple):
    """What attention remembers of a draft row: a key and a value for each head."""

    keys: Tensor
    values: Tensor


class Out(NamedTuple):
    """What a draft row gives: the state for the next pass, what the head reads, and what stays."""

    state: Tensor
    read: Tensor
    row: Row


class Node(NamedTuple):
    """A candidate of the draft tree: parent is the flat index of another candidate, -1 the root."""

    score: float
    token: int
    parent: int


@dataclass(frozen=True)
class Served:
    """One answered request, and what SGLang's response would say of it."""

    tokens: list[int]
    roots: list[int]
    num_accepted: list[int]
    num_steps: int
    num_draft_tokens: int

    def meta_info(self) -> dict[str, Any]:
        """The fields of SGLang 0.5.23."""
        rounds, accepted = len(self.roots), sum(self.num_accepted)
        return {
            "completion_tokens": len(self.tokens),
            "spec_verify_ct": rounds,
            "spec_num_correct_drafts": accepted,
            "spec_num_proposed_drafts": rounds * (self.num_draft_tokens - 1),
            "spec_correct_drafts_histogram": [self.num_accepted.count(c) for c in range(self.num_steps + 1)],
        }


def log_line(served: Sequence[Served]) -> str:
    """SGLang 0.5.23's decode line over all rounds of some requests."""
    rounds = sum(len(one.roots) for one in served)
    accepted = sum(sum(one.num_accepted) for one in served)
    length, rate = 1 + accepted / rounds, accepted / rounds / served[0].num_steps
    return (
        "[2026-11-30 12:00:00] Decode batch, #running-req: 1, #token: 512, token usage: 0.01, "
        f"accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 100.00, "
        "#queue-req: 0"
    )


class PlainTarget:
    """The target after any prefix: its first choice and its states, each prefix run once and from scratch."""

    def __init__(self, target: e3.Target) -> None:
        self.target = target
        self.points = range(target.config.num_layers + 1)
        self._after: dict[tuple[int, ...], tuple[int, dict[Any, Tensor]]] = {}

    @torch.inference_mode()
    def after(self, prefix: tuple[int, ...]) -> tuple[int, dict[Any, Tensor]]:
        """The token that follows, and the states of the prefix's last token by capture point, "final" among them."""
        if prefix not in self._after:
            output = self.target.forward(torch.tensor([prefix]), capture_points=self.points)
            choices = self.target.logits(output.final_hidden_state)[0].argmax(-1).tolist()
            for end in range(1, len(prefix) + 1):
                states: dict[Any, Tensor] = {p: s[0, end - 1] for p, s in output.aux_hidden_states.items()}
                states["final"] = output.final_hidden_state[0, end - 1]
                self._after.setdefault(prefix[:end], (choices[end - 1], states))
        return self._after[prefix]


class SampledTarget(PlainTarget):
    """The same, but the token that follows is drawn, once for each prefix: so the text is one, whatever is drafted.

    SGLang's target-only sampling: the target draws, and keeps a draft that is the token drawn.
    """

    def __init__(self, target: e3.Target, temperature: float) -> None:
        super().__init__(target)
        self._temperature, self._drawn = temperature, dict[tuple[int, ...], int]()

    @torch.inference_mode()
    def after(self, prefix: tuple[int, ...]) -> tuple[int, dict[Any, Tensor]]:
        """As ``PlainTarget.after``."""
        states = super().after(prefix)[1]
        if prefix not in self._drawn:
            probs = (self.target.logits(states["final"][None])[0].float() / self._temperature).softmax(-1)
            coin = torch.Generator().manual_seed(sum(7**i * token for i, token in enumerate(prefix)) % 2**63)
            self._drawn[prefix] = int(torch.multinomial(probs, 1, generator=coin))
        return self._drawn[prefix], states


class FaultyServer:
    """Serves a draft of one layer with some faults.

    Args:
        target: shared between servers, for what it remembers.
        folder: of the draft.
        points: the streams that the draft was trained on.
        tree: of the server's flags.
        faults: names of hypotheses; none is a right server.
    """

    def __init__(
        self, target: PlainTarget, folder: Path, points: Sequence[int], tree: e3.TreeConfig, faults: Sequence[str] = ()
    ) -> None:
        self.target, self.faults, self.trained_points = target, tuple(faults), tuple(points)
        self.config = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self.tensors = {
            name.replace("midlayer.", "").replace("layers.0.", ""): value.float() for name, value in stored.items()
        }
        size = self.config.get("draft_vocab_size") or self.config["vocab_size"]
        self.d2t = stored["d2t"].tolist() if "d2t" in stored else [0] * size
        self.steps, self.topk, self.nodes, self.slots = tree.num_steps, tree.topk, tree.num_draft_tokens, tree.tree_kv
        self._set_tree()

    def has(self, *names: str) -> bool:
        return any(name in self.faults for name in names)

    def number(self, pattern: str) -> int | None:
        """The number in the name of a fault such as window-2048."""
        found = [re.fullmatch(pattern, fault) for fault in self.faults]
        return next((int(match[1]) for match in found if match), None)

    def _set_tree(self) -> None:
        chain = self.topk == 1
        self.steps += self.has("one-step-more") - self.has("one-step-fewer")
        self.nodes += chain * (self.has("one-step-more") - self.has("one-step-fewer"))
        self.nodes += self.has("one-draft-token-more") - self.has("one-draft-token-fewer")
        for kind in ("slot", "ancestor"):
            self.slots = kind if self.has(f"tree-rows-{kind}") else self.slots

    # Serving.

    @torch.inference_mode()
    def answer(self, prompt: Sequence[int], max_new_tokens: int) -> Served:
        """Greedy, as SGLang: the first token comes with the prompt, then round after round."""
        self.prompt_length = len(prompt)
        self.tokens = [*prompt, self.target.after(tuple(prompt))[0]]
        self.rows: list[Row | None] = []
        self.outs: list[Out | None] = []
        self.kept: list[Row] = []
        ends, roots, accepted = set(self.target.target.config.eos_token_ids), [], []
        while len(self.tokens) - len(prompt) < max_new_tokens and ends.isdisjoint(self.tokens[len(prompt) :]):
            self._extend()
            roots.append(len(self.tokens) - 1)
            path = self._verify(self._draft_tree())
            accepted.append(len(path))
            self.tokens += [*path, self.target.after((*self.tokens, *path))[0]]
        answer = self.tokens[len(prompt) :][:max_new_tokens]
        stop = next((i + 1 for i, token in enumerate(answer) if token in ends), len(answer))
        return Served(answer[:stop], roots, accepted, self.steps, self.nodes)

    def _extend(self) -> None:
        """Make the draft rows that are missing up to the one before the root."""
        if self.has("own-rows-kept"):
            for row in self.kept:
                self.rows.append(row)
                self.outs.append(None)
        for position in range(len(self.rows), len(self.tokens) - 1):
            if position < self._cached():
                self.rows.append(None)
                self.outs.append(None)
                continue
            out = self._row(self._fused(position), self._following(position), position, self._before(position))
            self.rows.append(out.row)
            self.outs.append(out)

    def _draft_tree(self) -> list[Node]:
        """All candidates in flat order: level after level, beam after beam, best first."""
        root = len(self.tokens) - 1
        out = self.outs[max(root - 1 - self.has("drafts-from-row-before"), 0)]
        assert out is not None
        before = self._before(root)
        candidates = [Node(fp32(p), token, -1) for p, token in self._children(out)]
        beams = list(range(self.topk))
        lineages: list[list[int]] = [[] for _ in beams]
        states = [out.state] * self.topk
        made: list[list[Row]] = []
        for step in range(self.steps - 1):
            position = self._loop_position(root, step)
            outs = []
            for slot, beam in enumerate(beams):
                seen = [slot] * step if self.slots == "slot" else lineages[slot]
                seen = [] if self.has("loop-rows-unseen") else seen
                own = [made[level][place] for level, place in enumerate(seen)]
                outs.append(self._row(states[slot], candidates[beam].token, position, before + own))
            made.append([one.row for one in outs])
            first = len(candidates)
            for beam, one in zip(beams, outs, strict=True):
                score = candidates[beam].score
                candidates += [Node(fp32(score * fp32(p)), token, beam) for p, token in self._children(one)]
            chosen = best([node.score for node in candidates[first:]], self.topk)
            origins = [index // self.topk for index in chosen]
            lineages = [[*lineages[origin], origin] for origin in origins]
            states = [outs[origin].state for origin in origins]
            beams = [first + index for index in chosen]
        self._loop_rows = [rows[0] for rows in made]
        return candidates

    def _verify(self, candidates: list[Node]) -> list[int]:
        """The accepted tokens: from the root on, the first child that is the target's own choice."""
        drafted = sorted(best([node.score for node in candidates], self.nodes - 1))
        path: list[int] = []
        parent = -1
        end = self.number(r"no-drafts-past-(\d+)")
        if end is not None and len(self.tokens) - 1 >= end:
            drafted = []
        while True:
            wanted = self.target.after((*self.tokens, *path))[0]
            fitting = [i for i in drafted if candidates[i].parent == parent and candidates[i].token == wanted]
            if not fitting:
                self.kept = self._loop_rows[: len(path)]
                return path
            parent = fitting[0]
            path.append(wanted)

    # What a committed row is made of.

    def _fused(self, position: int) -> Tensor:
        if self.has("eagle-flag", "eagle-flag-pre-norm"):
            stream = "final" if self.has("eagle-flag") else self.target.points[-1]
            return self._state(stream, position)
        states = [self._state(stream, position) for stream in self._streams()]
        for name, place in NTH.items():
            if self.has("states-zero", f"states-{name}-zero") and place < len(states):
                states[place] = torch.zeros_like(states[place])
        if self.config.get("norm_before_fc") and not self.has("norm-before-fc-missing"):
            states = list(self._norm("input_norm", torch.cat(states)).chunk(len(states)))
        if self.config.get("fc_norm") and not self.has("fc-norm-missing"):
            states = [self._norm(f"fc_norm.{i}", state) for i, state in enumerate(states)]
        return self._linear("fc", torch.cat(states))

    def _streams(self) -> list[int]:
        """The capture points that the engine hands over, in its order."""
        streams = list(self.trained_points)
        for fault in self.faults:
            if match := re.fullmatch(r"capture-(?:(first|second|third)-)?(plus|minus)-1", fault):
                step = 1 if match[2] == "plus" else -1
                places = [NTH[match[1]]] if match[1] else range(len(streams))
                for place in places:
                    streams[place] += step
            elif match := re.fullmatch(r"capture-order-([\d-]+)", fault):
                streams = [streams[int(place) - 1] for place in match[1].split("-")]
            elif match := re.fullmatch(r"capture-all-(\w+)", fault):
                streams = [streams[NTH[match[1]]]] * len(streams)
            elif fault == "capture-embedding-first":
                streams[0] = 0
        return streams

    def _state(self, stream: int | str, position: int) -> Tensor:
        late = self.has("states-one-late")
        state = self.target.after(tuple(self.tokens[: max(position - late, 0) + 1]))[1][stream]
        if self.has("states-int8"):
            scale = state.abs().max() / 127
            state = (state / scale).round() * scale
        if self.has("states-fp8"):
            scale = state.abs().max() / 448
            state = (state / scale).to(torch.float8_e4m3fn).float() * scale
        if self.has("states-rotated", "states-and-embedding-rotated"):
            state = self._rotation @ state
        return state

    @cached_property
    def _rotation(self) -> Tensor:
        """Signs, then a Hadamard matrix on blocks of the largest power of two that divides the width."""
        width = self.config["hidden_size"]
        signs = torch.randint(0, 2, (width,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        block = max(2**power for power in range(16) if width % 2**power == 0)
        matrix = torch.tensor(hadamard(block), dtype=torch.float32) / block**0.5
        return torch.block_diag(*[matrix.T] * (width // block)) * signs

    def _following(self, position: int) -> int:
        """The token that goes with a row: the next one, when all is right."""
        own = self.tokens[position]
        if self.has("token-not-shifted"):
            return own
        last_of_prompt = position == self.prompt_length - 1
        if last_of_prompt and self.has("last-row-own-token"):
            return own
        if last_of_prompt and self.has("last-row-zero-token"):
            return 0
        for kind in ("own-token", "first-choice"):
            chunk = self.number(rf"chunk-tail-{kind}-(\d+)")
            if chunk and (position + 1) % chunk == 0 and position < self.prompt_length - 1:
                return own if kind == "own-token" else self.target.after(tuple(self.tokens[: position + 1]))[0]
        return self.tokens[position + 1]

    def _cached(self) -> int:
        """Rows that a prefix cache did not bring along."""
        if self.has("cached-all-rows-missing"):
            return self.prompt_length - 1
        half = self.prompt_length // 2 if self.has("cached-half-rows-missing") else 0
        return min(half, self.prompt_length - 1)

    def _before(self, position: int) -> list[Row]:
        """The committed rows that a row at this place of the text sees, itself not counted."""
        window = self.number(r"window-(\d+)")
        last = min(position, len(self.tokens) - 1)
        start = 0
        if window is not None:
            # A row counts itself among the last ``window``; the drafts of a root see as many committed rows.
            start = max(0, last - window + (position < len(self.tokens) - 1))
        return [row for row in self.rows[start:last] if row is not None]

    def _loop_position(self, root: int, step: int) -> int:
        if self.has("loop-not-advanced"):
            return root
        return root + step + self.has("loop-position-plus-1") - self.has("loop-position-minus-1")

    # The network.

    def _row(self, state: Tensor, token: int, position: int, before: list[Row]) -> Out:
        embedded = self._norm("input_layernorm", self._embedding[token])
        hidden = self._norm("hidden_norm", self._doubly(state))
        residual = hidden if self._flag("norm_before_residual", "norm-before-residual-flipped") else state
        pair = (hidden, embedded) if self.has("inputs-swapped") else (embedded, hidden)
        query, row = self._project(torch.cat(pair), position)
        keys = torch.stack([*(r.keys for r in before), row.keys])  # [rows, heads, D]
        values = torch.stack([*(r.values for r in before), row.values])
        shares = (torch.einsum("rhd,hd->hr", keys, query) * self._scale).softmax(-1)
        attended = torch.einsum("hr,rhd->hd", shares, values).flatten()
        stream = residual + self._linear("self_attn.o_proj", attended)
        inner = self._norm("post_attention_layernorm", stream)
        gate, up = (self._linear(f"mlp.{part}_proj", inner) for part in ("gate", "up"))
        stream = stream + self._linear("mlp.down_proj", gate * torch.sigmoid(gate) * up)
        normed = stream if self.has("final-norm-skipped") else self._norm("norm", stream)
        recurrent = normed if self._flag("norm_output", "state-after-norm", "state-before-norm") else stream
        return Out(recurrent, normed, row)

    def _flag(self, key: str, *flipped_by: str) -> bool:
        return bool(self.config.get(key)) != self.has(*flipped_by)

    def _doubly(self, state: Tensor) -> Tensor:
        return self._norm("input_layernorm", state) if self.has("double-norm-flipped") else state

    def _linear(self, name: str, x: Tensor) -> Tensor:
        out = self.tensors[f"{name}.weight"] @ x
        return out + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else out

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return self.tensors[f"{name}.weight"] * (x / (x.square().mean() + self.config["rms_norm_eps"]).sqrt())

    def _project(self, x: Tensor, position: int) -> tuple[Tensor, Row]:
        """Queries [heads, D] and the row of this input."""
        heads = self.config["num_attention_heads"]
        if "kv_lora_rank" not in self.config:
            size = self.config["head_dim"]
            query, key, value = (self._linear(f"self_attn.{part}_proj", x).reshape(-1, size) for part in "qkv")
            repeat = heads // len(key)
            turned = self._rotate(key, position).repeat_interleave(repeat, 0)
            return self._rotate(query, position), Row(turned, value.repeat_interleave(repeat, 0))
        nope, rank = self.config["qk_nope_head_dim"], self.config["kv_lora_rank"]
        low = self._norm("self_attn.q_a_layernorm", self._linear("self_attn.q_a_proj", x))
        query = self._linear("self_attn.q_b_proj", low).reshape(heads, -1)
        query = torch.cat((query[:, :nope], self._rotate(query[:, nope:], position)), 1)
        compressed = self._linear("self_attn.kv_a_proj_with_mqa", x)
        shared = self._rotate(compressed[None, rank:], position).expand(heads, -1)
        latent = self._norm("self_attn.kv_a_layernorm", compressed[:rank])
        up = self._linear("self_attn.kv_b_proj", latent).reshape(heads, -1)
        return query, Row(torch.cat((up[:, :nope], shared), 1), up[:, nope:])

    @cached_property
    def _scale(self) -> float:
        if "kv_lora_rank" not in self.config:
            return float(self.config["head_dim"] ** -0.5)
        scaling = {} if self.has("rope-scaling-missing") else self.config.get("rope_scaling") or {}
        width = self.config["qk_nope_head_dim"] + self.config["qk_rope_head_dim"]
        temperature = 1.0
        if scaling.get("mscale_all_dim") and not self.has("yarn-temperature-missing"):
            temperature = 0.1 * scaling["mscale_all_dim"] * torch.tensor(scaling["factor"]).log().item() + 1
        return float(width**-0.5 * temperature**2)

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        """[heads, D] by the angles of a position."""
        width = x.shape[-1]
        angles = position * self._frequencies(width)
        interleaved = ("kv_lora_rank" in self.config) != self.has("rope-layout-swapped")
        pairs = torch.arange(width).reshape(-1, 2) if interleaved else torch.arange(width).reshape(2, -1).T
        first, second = x[:, pairs[:, 0]], x[:, pairs[:, 1]]
        turned = torch.empty_like(x)
        turned[:, pairs[:, 0]] = first * angles.cos() - second * angles.sin()
        turned[:, pairs[:, 1]] = second * angles.cos() + first * angles.sin()
        return turned

    def _frequencies(self, width: int) -> Tensor:
        config = dict(self.config)
        if self.has("rope-scaling-missing"):
            config["rope_scaling"] = None
        if self.has("yarn-beta-fast"):
            config["rope_scaling"] = config["rope_scaling"] | {"beta_fast": 1.0}
        if self.has("target-theta"):
            config["rope_theta"] = self._target_theta
        oracle = Oracle(config, {})
        return torch.tensor([oracle.frequency(i, width) for i in range(width // 2)], dtype=torch.float32)

    @cached_property
    def _target_theta(self) -> float:
        stored = json.loads((Path(self.target.target.config.path) / "config.json").read_text())
        return float(stored.get("text_config", stored)["rope_theta"])

    # Embedding, head and vocabulary.

    @cached_property
    def _embedding(self) -> Tensor:
        own = self.tensors.get("embed_tokens.weight")
        embedding = self.target.target.embedding().float() if own is None else own
        if self.has("embedding-random"):
            embedding = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0)) * 0.02
        if self.has("embedding-foreign"):
            embedding = embedding[torch.randperm(len(embedding), generator=torch.Generator().manual_seed(0))]
        if self.has("embedding-of-target", "eagle-flag", "eagle-flag-pre-norm"):
            embedding = self.target.target.embedding().float()
        if self.has("states-and-embedding-rotated"):
            embedding = embedding @ self._rotation.T
        return embedding

    @cached_property
    def _head(self) -> Tensor:
        theirs = self.target.target.lm_head().float()
        own = self.tensors.get("lm_head.weight", theirs)
        if self.has("head-random"):
            return torch.randn(own.shape, generator=torch.Generator().manual_seed(0)) * 0.02
        if self.has("head-of-target"):
            return theirs
        if self.has("head-first-rows", "eagle-flag", "eagle-flag-pre-norm"):
            return theirs[: len(own)]
        if self.has("head-target-by-d2t"):
            return torch.stack([theirs[i + offset] for i, offset in enumerate(self.d2t)])
        return own

    def _target_id(self, draft_id: int) -> int:
        if self.has("d2t-ignored", "head-of-target", "eagle-flag", "eagle-flag-pre-norm"):
            return draft_id
        if self.has("d2t-absolute"):
            return int(self.d2t[draft_id])
        if self.has("d2t-doubled"):
            return min(2 * draft_id + self.d2t[draft_id], self.config["vocab_size"] - 1)
        if self.has("d2t-shuffled"):
            draft_id = int(torch.randperm(len(self.d2t), generator=torch.Generator().manual_seed(0))[draft_id])
        return int(draft_id + self.d2t[draft_id])

    def _children(self, out: Out) -> list[tuple[float, int]]:
        """Probability and target id of the best next tokens of a row, best first."""
        probs = (self._head @ out.read).softmax(-1)
        order = best(probs.tolist(), self.topk)
        return [(float(probs[i]), self._target_id(i)) for i in order]

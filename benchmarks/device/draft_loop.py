"""The draft loop of a Kimi-K2.5-sized draft: graph against eager bit for bit, against ``propose``, and its times."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from device import rehearsal
from device.clock import cold_ms, kernels_ms
from device.recorder import Case, Recorder
from device.setting import Setting, Sizes
from eagle3ref.config import DraftConfig, TreeConfig
from eagle3ref.cuda_graph import Drafted, GraphedDraftLoop, LoopStart, StaticDraftLoop, capture_draft_loop
from eagle3ref.cuda_graph.buffers import cut, fill, prefix_buffers, start_buffers
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.kernels import get_ops
from eagle3ref.nn import Prefix, Rows
from eagle3ref.tree import build_tree

KINDS = ("gqa", "mla")
_CAPTURE_POINTS = (2, 30, 58)
_GRAPH_OVER_KERNELS, _EAGER_OVER_GRAPH = 1.15, 2.0  # goals: at most, and at least
_CLOSE = 1e-3  # relative, of scores: fp32 sums in another order, over five passes


def cases(setting: Setting) -> list[Case]:
    """Equality with eager, with the reference, and times."""
    chain, tree = (TreeConfig(*shape) for shape in setting.sizes.trees[:2])
    ancestor = replace(tree, tree_kv="ancestor")
    shapes = (("gqa", tree), ("gqa", chain), ("mla", tree), ("mla", ancestor))
    equal = [Case(f"graph of {kind} {one}", partial(graph_equals_eager, setting, kind, one)) for kind, one in shapes]
    reference = [
        Case(f"loop of {kind} against propose", partial(equals_propose, setting, kind, tree)) for kind in KINDS
    ]
    timed = [
        Case(f"times of {kind} {one}", partial(time_loop, setting, kind, one), is_check=False)
        for kind, one in shapes[:3]
    ]
    return [*equal, *reference, *timed]


def graph_equals_eager(setting: Setting, kind: str, tree: TreeConfig, recorder: Recorder) -> None:
    """Every batch size, each twice with new inputs, against the same kernels without a graph on the same bucket."""
    draft = random_draft(setting, kind, setting.served)
    loop, graphed = StaticDraftLoop(draft, tree, get_ops("triton")), captured(setting, draft, tree)
    fill_prefix(setting, graphed.prefix)
    for batch in (*setting.sizes.batches, *setting.sizes.batches):
        start = random_start(setting, draft, batch, tree.topk)
        bucket = min(size for size in graphed.batch_buckets if size >= batch)
        padded = start_buffers(draft, bucket, tree.topk)
        fill(padded, start)
        eager = cut(loop(padded, [Rows(*(part[:bucket] for part in rows)) for rows in graphed.prefix]), batch)
        replayed = graphed(start)
        differing = [name for name, value in tensors(replayed).items() if not torch.equal(value, tensors(eager)[name])]
        finite = bool(eager.candidates.scores.isfinite().all())
        recorder.check(
            f"graph of {kind} {tree} {tree.tree_kv}, batch {batch}", finite and not differing, differing=differing
        )


def equals_propose(setting: Setting, kind: str, tree: TreeConfig, recorder: Recorder) -> None:
    """Scores of the loop in fp32 against the reference's, best first.

    Two candidates whose scores are closer than the rounding may change places on a device, and then the tokens below
    them differ. So tokens are counted, and scores decide.
    """
    draft = random_draft(setting, kind, torch.float32)
    batch = setting.sizes.batches[-1]
    start = random_start(setting, draft, batch, tree.topk)
    prefix = prefix_rows(setting, draft, batch)
    got = StaticDraftLoop(draft, tree, get_ops("triton"))(start, prefix)
    wanted = reference(draft, start, prefix, tree)
    scores, exact = (one.candidates.scores.sort(-1, descending=True).values for one in (got, wanted))
    off = float(((scores - exact).abs() / exact).max())
    equal = float((got.candidates.tokens == wanted.candidates.tokens).double().mean())
    recorder.check(f"loop of {kind} against propose", off <= _CLOSE, largest_relative_error=off, equal_tokens=equal)


def time_loop(setting: Setting, kind: str, tree: TreeConfig, recorder: Recorder) -> None:
    """One round: as a graph, as the same kernels one by one, and as ``propose`` and ``build_tree``."""
    draft = random_draft(setting, kind, setting.served)
    loop, graphed = StaticDraftLoop(draft, tree, get_ops("triton")), captured(setting, draft, tree)
    fill_prefix(setting, graphed.prefix)
    for batch in (setting.sizes.buckets[0], setting.sizes.buckets[-1]):
        start = random_start(setting, draft, batch, tree.topk)
        prefix = [Rows(*(part[:batch] for part in rows)) for rows in graphed.prefix]
        graph_ms = cold_ms(setting, lambda start=start: graphed(start))
        loop_ms = cold_ms(setting, lambda start=start, prefix=prefix: loop(start, prefix))
        propose_ms = cold_ms(setting, lambda start=start, prefix=prefix: reference(draft, start, prefix, tree))
        # A flush between repeats would be one of the kernels; weights of gigabytes leave the cache cold by themselves.
        kernels = kernels_ms(setting, lambda start=start: graphed(start))
        recorder.write(
            "loop",
            name=f"{kind} {tree} x {batch}",
            graph_ms=graph_ms,
            eager_ms=loop_ms,
            propose_ms=propose_ms,
            kernels_ms=None if setting.rehearsed else kernels,
            goals={"graph_over_kernels": _GRAPH_OVER_KERNELS, "eager_over_graph": _EAGER_OVER_GRAPH},
        )


def captured(setting: Setting, draft: Eagle3Draft, tree: TreeConfig) -> GraphedDraftLoop:
    """The graphs, or where it is rehearsed the same object with a stand-in for each."""
    sizes, ops = setting.sizes, get_ops("triton")
    if setting.rehearsed:
        return rehearsal.graphed_loop(draft, tree, sizes.buckets, sizes.prefix, ops)
    return capture_draft_loop(draft, tree, sizes.buckets, sizes.prefix, ops)


def reference(draft: Eagle3Draft, start: LoopStart, prefix: list[Rows], tree: TreeConfig) -> Drafted:
    """``propose`` and ``build_tree``."""
    seen = torch.arange(prefix[0].first.shape[1], device=start.state.device) < start.prefix_lengths[:, None]
    shared = [Prefix(rows, seen[:, None, None]) for rows in prefix]
    first = FirstLevel(*(part.unsqueeze(1) for part in start[:3]))
    candidates = propose(draft, first, start.prefix_lengths[:, None], shared, tree)
    shape = {"root_tokens": start.root_tokens, "prefix_lengths": start.prefix_lengths}
    return Drafted(candidates, build_tree(candidates, **shape, num_draft_tokens=tree.num_draft_tokens))


def tensors(drafted: Drafted) -> dict[str, Tensor]:
    """Every tensor of a round by the name of its field."""
    return {f"{type(part).__name__}.{one.name}": getattr(part, one.name) for part in drafted for one in fields(part)}


def random_draft(setting: Setting, kind: str, dtype: torch.dtype) -> Eagle3Draft:
    """A draft of the published Kimi shapes, with random weights on the device."""
    config = _config(setting.sizes, kind)
    ids = torch.arange(config.draft_vocab_size, device=setting.device) * (config.vocab_size // config.draft_vocab_size)
    with torch.device("meta"):
        draft = Eagle3Draft(config, 1, _CAPTURE_POINTS, ids)
    draft = draft.to(dtype).to_empty(device=setting.device).requires_grad_(False)
    draft.target_ids = ids
    for name, weight in draft.named_parameters():
        weight.data.normal_(std=weight.shape[-1] ** -0.5 if weight.ndim == 2 else 0.1)
        if name.endswith("norm.weight"):
            weight.data += 1
    # Sharper than random weights are: neighbors in a flat distribution lie within the rounding of each other.
    draft.lm_head.weight.data *= 4
    return draft


def random_start(setting: Setting, draft: Eagle3Draft, batch: int, topk: int) -> LoopStart:
    """Random states and roots; the first prefix is full, the second empty."""
    state = setting.random(batch, draft.config.hidden_size, dtype=draft.fc.weight.dtype)
    probs, tokens = best_next(draft, state, topk)
    lengths = setting.integers(setting.sizes.prefix, batch)
    lengths[:2] = torch.tensor([setting.sizes.prefix, 0], device=setting.device)[:batch]
    return LoopStart(state, probs.float(), tokens, setting.integers(draft.config.vocab_size - 1, batch), lengths)


def prefix_rows(setting: Setting, draft: Eagle3Draft, batch: int) -> list[Rows]:
    """Random committed rows."""
    rows = prefix_buffers(draft, batch, setting.sizes.prefix)
    fill_prefix(setting, rows)
    return rows


def fill_prefix(setting: Setting, prefix: list[Rows]) -> None:
    """Random numbers in place."""
    for rows in prefix:
        for part in rows:
            part.copy_(setting.random(*part.shape, dtype=part.dtype))


def config_fields(sizes: Sizes, kind: str) -> dict[str, Any]:
    """config.json of a draft of the published kinds: ``gqa``, with a head for each key, or ``mla``."""
    rank = {"q_lora_rank": sizes.query_rank, "kv_lora_rank": sizes.latent}
    latent = rank | {"qk_nope_head_dim": sizes.nope, "qk_rope_head_dim": sizes.rope, "v_head_dim": sizes.value}
    heads = {"num_key_value_heads": sizes.heads, "head_dim": sizes.head_dim}
    return {
        "architectures": ["LlamaForCausalLMEagle3" if kind == "gqa" else "Eagle3DeepseekV2ForCausalLM"],
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads,
        "vocab_size": sizes.vocab,
        "draft_vocab_size": sizes.draft_vocab if kind == "gqa" else sizes.vocab,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rope_theta": 1e6,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(_CAPTURE_POINTS), "use_aux_hidden_state": True},
        **(heads if kind == "gqa" else latent),
    }


def _config(sizes: Sizes, kind: str) -> DraftConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_fields(sizes, kind)), encoding="utf-8")
        return DraftConfig.from_folder(folder)

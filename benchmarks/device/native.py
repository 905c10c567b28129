"""The C++ and CUDA twins, where the package was built with them."""

from __future__ import annotations

from functools import partial

import torch

from device import int4, trees
from device.recorder import Case, Recorder
from device.setting import Setting
from eagle3ref.config import TreeConfig
from eagle3ref.kernels import get_ops, native, native_library
from eagle3ref.kernels.native_library import NativeDevice
from eagle3ref.positions import walk_positions
from eagle3ref.tree import build_tree

_SEQUENCES = 16


def cases(setting: Setting) -> list[Case]:
    """Nothing but a note where there is no extension for the device."""
    kind: NativeDevice = "cpu" if setting.rehearsed else "cuda"
    missing = native_library.why_not(kind)
    if missing is not None:
        note = f"native twins not checked: found {missing}"
        return [Case("native", lambda recorder: recorder.write("note", text=note), is_check=False)]
    shapes = [TreeConfig(*shape) for shape in setting.sizes.trees]
    sampled = [Case(f"native target-only {tree}", partial(target_only, setting, tree)) for tree in shapes]
    others = {"unpack_int4": unpack, "dequantize_int4": dequantize, "walk": walk, "tally_settings": tally}
    plain = [Case(f"native {name}", partial(run, setting)) for name, run in others.items()]
    return [*trees.cases(setting, "native"), *sampled, *plain]


def target_only(setting: Setting, tree: TreeConfig, recorder: Recorder) -> None:
    """Target-only verification of one shape, with random coins."""
    candidates, lengths = trees.random_candidates(setting, tree), setting.integers(9, _SEQUENCES)
    # Two siblings with one token are refused by sampled verification: every candidate gets a token of its own.
    vocabulary = candidates.tokens.shape[1]
    candidates.tokens.copy_(torch.arange(vocabulary, device=setting.device).expand_as(candidates.tokens))
    built = build_tree(candidates, root_tokens=lengths, prefix_lengths=lengths, num_draft_tokens=tree.num_draft_tokens)
    shape = (_SEQUENCES, tree.num_draft_tokens, vocabulary)
    probs = torch.rand(shape, device=setting.device).pow(4)
    probs = probs / probs.sum(-1, keepdim=True)
    coins = torch.rand(shape[:2], device=setting.device), torch.rand(shape[:1], device=setting.device)
    got, wanted = (get_ops(name).verify_target_only(built, probs, *coins) for name in ("native", "torch"))
    accepted = int(wanted.num_accepted.sum())
    recorder.check(f"native verify_target_only {tree}", trees.same(got, wanted), accepted=accepted)


def unpack(setting: Setting, recorder: Recorder) -> None:
    """All nibbles of a random weight of an expert."""
    words, _ = int4.random_weight(setting, (setting.sizes.expert, setting.sizes.hidden))
    got, wanted = (get_ops(name).unpack_int4(words) for name in ("native", "torch"))
    recorder.check("native unpack_int4", got.dtype == wanted.dtype and torch.equal(got, wanted))


def dequantize(setting: Setting, recorder: Recorder) -> None:
    """A random weight of an expert, with scales of every dtype."""
    shape = (setting.sizes.expert, setting.sizes.hidden)
    words, scale = int4.random_weight(setting, shape)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        given = (words, scale.to(dtype), torch.tensor(shape), "weight")
        got, wanted = (get_ops(name).dequantize_int4(*given) for name in ("native", "torch"))
        recorder.check(f"native dequantize_int4, {dtype}", got.dtype == wanted.dtype and torch.equal(got, wanted))


def walk(setting: Setting, recorder: Recorder) -> None:
    """The roots that a walk over a long sequence comes to."""
    accepted = setting.integers(5, 10_000)
    got, wanted = get_ops("native").walk_positions(accepted), walk_positions(accepted)
    recorder.check("native walk_positions", got.dtype == wanted.dtype and torch.equal(got, wanted), visited=len(wanted))


def tally(setting: Setting, recorder: Recorder) -> None:
    """Every setting of three steps, walked over sequences of many lengths, against one walk after the other."""
    steps, tokens = 3, (2, 4, 9)
    ends = setting.integers(700, _SEQUENCES).cumsum(0).cpu()
    ranks = 1 + setting.integers(9, int(ends[-1]), steps, steps).to(torch.int16)
    starts = torch.nn.functional.pad(ends, (1, 0))
    pairs = torch.cartesian_prod(torch.arange(1, steps + 1), torch.tensor(tokens))
    got = native.tally_settings(ranks, starts, *pairs.unbind(1))
    histogram, censored = torch.zeros_like(got[0], device="cpu"), torch.zeros_like(got[1], device="cpu")
    for setting_index, (num_steps, num_tokens) in enumerate(pairs.tolist()):
        for sequence, own in enumerate(ranks.cpu().tensor_split(ends[:-1])):
            accepted = (own[:, :num_steps, num_steps - 1] < num_tokens).sum(1)
            visited = walk_positions(accepted)
            whole = visited + num_steps <= len(own)
            counts = torch.bincount(accepted[visited[whole]], minlength=steps + 1)
            histogram[setting_index, sequence], censored[setting_index, sequence] = counts, (~whole).sum()
    equal = torch.equal(got[0].cpu(), histogram) and torch.equal(got[1].cpu(), censored)
    recorder.check("native tally_settings", equal, rounds=int(histogram.sum()))

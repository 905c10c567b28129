"""The static draft loop against ``propose`` and ``build_tree``, without a look from the host, and its CUDA graphs."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import fields, replace

import pytest
import tiny
import torch
from device.draft_loop import config_fields
from device.rehearsal import graphed_loop
from device.setting import KIMI
from hypothesis import given, settings
from hypothesis import strategies as st
from sm90 import compiled
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3ref.config import TreeConfig
from eagle3ref.cuda_graph import Drafted, GraphedDraftLoop, LoopStart, StaticDraftLoop, capture, capture_draft_loop
from eagle3ref.cuda_graph.buffers import cut, fill, prefix_buffers, smallest_bucket, start_buffers
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, load_draft, propose
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import get_ops
from eagle3ref.kernels.eager_selection import topk_on_device
from eagle3ref.nn import Prefix, Rows
from eagle3ref.sampling import topk_stable
from eagle3ref.tree import build_tree

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

ROOM = 11  # prefix rows that the buffers have room for
KINDS = [("gqa", {}), ("mla", {"norm_output": True}), ("gqa", {"num_layers": 2}), ("mla", {"num_layers": 2})]


def small_draft(folder, kind: str, dtype: torch.dtype = torch.float64, device: str = "cpu", **keys) -> Eagle3Draft:
    return load_draft(tiny.draft_folder(folder, kind, **keys), dtype=dtype, device=device)


def a_start(draft: Eagle3Draft, batch: int, topk: int) -> tuple[LoopStart, list[Rows]]:
    """A random start of sequences with prefixes of every length, 0 and the longest among them."""
    device = draft.target_ids.device
    state = torch.randn(batch, draft.config.hidden_size, dtype=draft.fc.weight.dtype, device=device)
    probs, tokens = best_next(draft, state, topk)
    lengths = torch.randperm(ROOM + 1)[:batch]
    lengths[: min(2, batch)] = torch.tensor([ROOM, 0])[:batch]
    prefix = [Rows(*(torch.randn_like(part) for part in rows)) for rows in prefix_buffers(draft, batch, ROOM)]
    roots = torch.randint(tiny.VOCAB, (batch,), device=device)
    return LoopStart(state, probs.float(), tokens, roots, lengths.to(device)), prefix


def reference(draft: Eagle3Draft, start: LoopStart, prefix: list[Rows], tree: TreeConfig) -> Drafted:
    visible = (torch.arange(ROOM, device=start.state.device) < start.prefix_lengths[:, None])[:, None, None]
    first = FirstLevel(*(part.unsqueeze(1) for part in start[:3]))
    roots = start.prefix_lengths[:, None]
    candidates = propose(draft, first, roots, [Prefix(rows, visible) for rows in prefix], tree)
    sizes = {"root_tokens": start.root_tokens, "prefix_lengths": start.prefix_lengths}
    return Drafted(candidates, build_tree(candidates, **sizes, num_draft_tokens=tree.num_draft_tokens))


def tensors(drafted: Drafted) -> dict[str, Tensor]:
    """Every tensor of a round by the name of its field; the tree's start with "tree."."""
    parts = zip(("", "tree."), drafted, strict=True)
    return {prefix + field.name: getattr(part, field.name) for prefix, part in parts for field in fields(part)}


def assert_same(got: Drafted, expected: Drafted, rtol: float) -> None:
    """Every integer and the mask are equal; scores within ``rtol``."""
    wanted = tensors(expected)
    for name, value in tensors(got).items():
        if value.is_floating_point():
            torch.testing.assert_close(value, wanted[name], rtol=rtol, atol=0)
        else:
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("tree_kv", ["slot", "ancestor"])
@pytest.mark.parametrize(("kind", "keys"), KINDS)
def test_the_loop_equals_propose_and_build_tree(kind, keys, tree_kv, tmp_path):
    """Bug: a beam reads another branch's rows, a bit or a position is one off, or layers mix their rows."""
    draft = small_draft(tmp_path, kind, **keys)
    for steps, topk, nodes in ((5, 3, 20), (4, 1, 5), (1, 4, 4), (3, 4, 30)):
        tree = TreeConfig(steps, topk, nodes, tree_kv)
        start, prefix = a_start(draft, 4, topk)
        loop = StaticDraftLoop(draft, tree, get_ops("torch"))
        assert_same(loop(start, prefix), reference(draft, start, prefix, tree), rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0.0, 1e-42, 1e-30, 0.25, 0.25000003, 0.5, 1.0]), min_size=1, max_size=12), st.data())
def test_the_best_on_the_device_are_the_stable_best(row, data):
    """Bug: among equals a higher index, or a key in which the index spoils the order of the scores."""
    k = data.draw(st.integers(1, len(row)))
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor([row, row[::-1]], dtype=dtype)
        for got, expected in zip(topk_on_device(scores, k), topk_stable(scores, k), strict=True):
            assert torch.equal(got, expected)


def test_the_best_of_nan_stay_within_range():
    """Bug: an index that reads out of bounds on a device, which cannot raise."""
    scores = torch.full((2, 5), torch.nan)
    scores[1] *= -1
    values, chosen = topk_on_device(scores, 3)
    assert values.isnan().all()
    assert ((chosen >= 0) & (chosen < 5)).all()


HOST_READS = (DataDependentOutputException, DynamicOutputShapeException)


@pytest.mark.parametrize("tree_kv", ["slot", "ancestor"])
@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_no_value_is_read_on_the_host(kind, tree_kv, tmp_path):
    """Bug: an item(), a bool of a tensor or a shape that depends on values: a graph could not be captured.

    Fake tensors have no values, so whoever asks for one raises. ``propose``, which refuses NaN, is the control.
    """
    draft = small_draft(tmp_path, kind, torch.float32, rope_scaling={"type": "dynamic", "factor": 2.0})
    tree = TreeConfig(4, 3, 12, tree_kv)
    start, prefix = a_start(draft, 2, 3)
    loop = StaticDraftLoop(draft, tree, get_ops("torch"))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        candidates = loop.score(start, prefix)
        with pytest.raises(HOST_READS):
            reference(draft, start, prefix, tree)
    assert candidates.scores.shape == (2, tree.num_candidates)


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_everything_lies_on_the_device_of_the_draft(kind, tmp_path):
    """Bug: a constant left on the CPU, which only a GPU would find. Fake tensors refuse to mix devices."""
    small = small_draft(tmp_path, kind)
    tree = TreeConfig(4, 3, 12, "ancestor")
    with FakeTensorMode(), torch.no_grad():
        with torch.device("meta"):  # stands for any other device than the CPU
            draft = Eagle3Draft(small.config, 2, small.capture_points, torch.empty(tiny.DRAFT_VOCAB, dtype=torch.int64))
        loop = StaticDraftLoop(draft, tree, get_ops("torch"))
        buffers, prefix = start_buffers(draft, 4, 3), prefix_buffers(draft, 4, ROOM)
        fill(buffers, start_buffers(draft, 2, 3))
        candidates = loop.score(buffers, prefix)
        assert {part.device.type for part in vars(candidates).values()} == {"meta"}
        with pytest.raises(RuntimeError, match="device"):
            loop.score(buffers._replace(prefix_lengths=torch.zeros(4, dtype=torch.int64)), prefix)


def test_a_dynamic_rope_is_a_plain_one_within_its_range(tmp_path):
    """Bug: another rope than the reference's, or rows past the range that every engine treats in its own way."""
    scaling = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": ROOM + 3}
    draft = small_draft(tmp_path, "gqa", **scaling)
    tree = TreeConfig(4, 2, 6)
    start, prefix = a_start(draft, 3, 2)
    assert_same(
        StaticDraftLoop(draft, tree, get_ops("torch"))(start, prefix), reference(draft, start, prefix, tree), 1e-6
    )
    with pytest.raises(Eagle3RefError, match="room for 11 prefix rows with a dynamic rope; expected at most 10"):
        StaticDraftLoop(draft, TreeConfig(5, 2, 6), get_ops("torch"))(start, prefix)


def test_a_draft_that_the_kernels_cannot_run_is_refused(tmp_path):
    """Bug: a window that is silently dropped, or torch.topk's own message."""
    windowed = small_draft(tmp_path / "windowed", "gqa")
    config = replace(windowed.config, layer_windows=(4,))
    with pytest.raises(Eagle3RefError, match="a sliding window of 4 rows"):
        StaticDraftLoop(windowed.rewired(config), TreeConfig(3, 2, 6), get_ops("torch"))
    topk = tiny.DRAFT_VOCAB + 1
    with pytest.raises(Eagle3RefError, match=f"topk {topk} for a draft vocabulary of {tiny.DRAFT_VOCAB}"):
        StaticDraftLoop(windowed, TreeConfig(1, topk, 4), get_ops("torch"))


def test_the_draft_itself_stays_as_it_is(tmp_path):
    """Bug: the reference's own modules are changed, or its tensors copied."""
    draft = small_draft(tmp_path, "mla")
    before = {name: tensor.data_ptr() for name, tensor in draft.state_dict().items()}
    kinds = [type(module) for module in draft.modules()]
    loop = StaticDraftLoop(draft, TreeConfig(3, 2, 6), get_ops("torch"))
    assert [type(module) for module in draft.modules()] == kinds
    shared = {tensor.data_ptr() for tensor in loop.draft.state_dict().values()}
    assert shared == set(before.values())


def test_a_prefix_length_out_of_range_gives_nan_scores(tmp_path):
    """Bug: rows read out of bounds, or a length clamped and a wrong answer given as if nothing were."""
    draft = small_draft(tmp_path, "gqa")
    start, prefix = a_start(draft, 3, 2)
    start.prefix_lengths[1] = ROOM + 1
    scores = StaticDraftLoop(draft, TreeConfig(3, 2, 6), get_ops("torch")).score(start, prefix).scores
    assert scores[1, 2:].isnan().all()  # all but the first level, which is given
    assert scores[[0, 2]].isfinite().all()


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_padding_changes_nothing_for_the_batch(kind, tmp_path):
    """Bug: leftovers of a larger batch in the padding, a padded group that is not finite, or a cut at the wrong end."""
    draft = small_draft(tmp_path, kind)
    tree, bucket = TreeConfig(4, 3, 12), 5
    start, prefix = a_start(draft, 3, 3)
    loop, buffers = StaticDraftLoop(draft, tree, get_ops("torch")), start_buffers(draft, bucket, 3)
    fill(buffers, a_start(draft, bucket, 3)[0])
    fill(buffers, start)
    assert all(not field[3:].any() for field in buffers)
    rows = prefix_buffers(draft, bucket, ROOM)
    for buffer, values in zip(rows, prefix, strict=True):
        for part, value in zip(buffer, values, strict=True):
            part[:3] = value
            part[3:] = 1.0  # what lies behind a prefix is not read
    padded = loop(buffers, rows)
    assert all(part.isfinite().all() for part in tensors(padded).values())
    assert_same(cut(padded, 3), loop(start, prefix), rtol=1e-6)


def test_the_smallest_bucket_that_holds_the_batch():
    """Bug: a bucket one too small or too large, or a batch that no graph holds run in another way."""
    assert [smallest_bucket((1, 4, 16), batch) for batch in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]
    for batch in (0, 17):
        with pytest.raises(Eagle3RefError, match=f"{batch} sequences; expected 1 to 16"):
            smallest_bucket((1, 4, 16), batch)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("probs", lambda value: value.double(), r"probs of torch.float64 \[2, 3\] on cpu; expected torch.float32"),
        ("tokens", lambda value: value[:, :2], r"tokens of torch.int64 \[2, 2\]"),
        ("prefix_lengths", lambda value: value[:1], r"prefix_lengths of torch.int64 \[1\]"),
    ],
)
def test_inputs_that_do_not_fit_the_buffers_are_refused_before_anything_is_written(field, change, message, tmp_path):
    """Bug: a copy that broadcasts or casts, or buffers that are half old and half new after an error."""
    draft = small_draft(tmp_path, "gqa")
    buffers = start_buffers(draft, 4, 3)
    start = a_start(draft, 2, 3)[0]
    with pytest.raises(Eagle3RefError, match=message):
        fill(buffers, start._replace(**{field: change(getattr(start, field))}))
    assert not any(buffer.any() for buffer in buffers)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "a draft on cpu; expected a CUDA device"),
        ({"name": "torch"}, "the torch operations"),
        ({"batch_buckets": ()}, r"batch_buckets \(\)"),
        ({"batch_buckets": (4, 0)}, r"batch_buckets \(4, 0\)"),
        ({"max_prefix": 0}, "max_prefix 0"),
    ],
)
def test_a_graph_that_cannot_be_captured_is_an_error(keys, message, tmp_path):
    """Bug: an eager loop in place of the graph that was asked for."""
    sizes = {"batch_buckets": (1, 4), "max_prefix": 8, "name": "triton", **keys}
    ops = replace(get_ops("torch"), name=sizes.pop("name"))
    with pytest.raises(Eagle3RefError, match=message):
        capture_draft_loop(small_draft(tmp_path, "gqa"), TreeConfig(3, 2, 6), **sizes, ops=ops)


def test_the_loop_on_triton_reads_no_value_on_the_host(tmp_path):
    """Bug: a kernel's wrapper or tree build that asks the device; or a kernel that is not its reference's twin.

    The interpreter reads memory below PyTorch, so every operation that PyTorch itself is asked for is the loop's own.
    """
    for kind in ("gqa", "mla"):
        draft = small_draft(tmp_path / kind, kind, torch.float32)
        tree = TreeConfig(3, 2, 5)
        start, prefix = a_start(draft, 2, 2)
        loop = StaticDraftLoop(draft, tree, get_ops("triton"))
        with NoReads(), NoLists():
            got = loop(start, prefix)
        assert_same(got, reference(draft, start, prefix, tree), rtol=1e-5)


class NoReads(TorchDispatchMode):
    """Raises where PyTorch is asked for a value of a tensor, or for a shape that depends on values."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        reads = by_mask or name in self.READS
        assert not reads, f"{name} reads on the host"
        return func(*args, **(kwargs or {}))


class NoLists(TorchFunctionMode):
    """Raises at the two ways to read a tensor of the CPU that no dispatcher sees."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert func not in (Tensor.tolist, Tensor.numpy), f"{func.__name__} reads on the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0, 0].item(),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: int(x.max()),
        lambda x: x[0].tolist(),
        lambda x: x.numpy(),
        lambda x: x.index_put((x > 0,), x.sum()),
    ],
)
def test_a_planted_host_read_is_found(read):
    """Bug: a guard that is blind to one way of asking a device."""
    with NoReads(), NoLists(), pytest.raises(AssertionError, match="reads on the host"):
        read(torch.ones(2, 2))


def test_what_a_graph_reads_stays_in_memory(tmp_path, monkeypatch):
    """Bug: constants of the loop, or ropes of a rewired draft, that are freed after the capture and read by replays."""
    # A CUDA graph keeps addresses and no tensors, and so does this one.
    monkeypatch.setattr(capture, "captured", lambda *_: (None, None))
    draft = small_draft(tmp_path, "gqa", rope_scaling={"type": "dynamic", "factor": 2.0})
    loop = StaticDraftLoop(draft, TreeConfig(3, 2, 5), get_ops("torch"))
    assert loop.draft is not draft
    constants = [loop._branch, loop._row_bits, loop._slot_bits, loop.draft.layers[0].self_attn.rope.frequencies]
    watched = [weakref.ref(tensor) for tensor in constants]
    graphed = GraphedDraftLoop(draft, loop, (1, 2), ROOM)
    del loop, constants
    gc.collect()
    assert graphed.batch_buckets == (1, 2)
    assert all(watcher() is not None for watcher in watched)


def test_calls_of_every_size_go_to_a_bucket_and_back(tmp_path):
    """Bug: the wrong bucket's buffers or results, or leftovers of the call before. Its graphs are stand-ins."""
    draft, tree = small_draft(tmp_path, "mla"), TreeConfig(3, 2, 5)
    graphed = graphed_loop(draft, tree, (1, 4), ROOM, get_ops("torch"))
    assert graphed.batch_buckets == (1, 4)
    loop = StaticDraftLoop(draft, tree, get_ops("torch"))
    for batch in (4, 2, 1, 3):
        start, prefix = a_start(draft, batch, 2)
        for buffer, values in zip(graphed.prefix, prefix, strict=True):
            for part, value in zip(buffer, values, strict=True):
                part[:batch] = value
        assert_same(graphed(start), loop(start, prefix), rtol=1e-6)
    with pytest.raises(Eagle3RefError, match="5 sequences; expected 1 to 4"):
        graphed(a_start(draft, 5, 2)[0])


def test_moved_weights_are_noticed_and_overwritten_ones_count(tmp_path):
    """Bug: a graph that goes on with the weights from before an update."""
    draft, tree = small_draft(tmp_path, "gqa"), TreeConfig(3, 2, 5)
    graphed = graphed_loop(draft, tree, (2,), ROOM, get_ops("torch"))
    start, _ = a_start(draft, 2, 2)
    before = graphed(start).candidates.scores.clone()
    draft.lm_head.weight.data.mul_(2)
    assert not torch.equal(graphed(start).candidates.scores, before)
    draft.lm_head.weight.data = draft.lm_head.weight.data.clone()
    with pytest.raises(Eagle3RefError, match="weights that lie elsewhere now"):
        graphed(start)


@pytest.mark.slow
def test_the_loop_of_a_kimi_draft_compiles_for_the_device(tmp_path):
    """Bug: a kernel that is given other types, strides or sizes in the loop than in tests of its own."""
    for kind in ("gqa", "mla"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps(config_fields(KIMI, kind)))
    usages = compiled(f"""
from eagle3ref.config import DraftConfig, TreeConfig
from eagle3ref.cuda_graph import StaticDraftLoop, prefix_buffers
from eagle3ref.cuda_graph.buffers import start_buffers
from eagle3ref.draft import Eagle3Draft
from eagle3ref.kernels import get_ops
torch.set_default_dtype(torch.bfloat16)
for kind in ("gqa", "mla"):
    config = DraftConfig.from_folder({str(tmp_path)!r} + "/" + kind)
    with torch.device("meta"):
        draft = Eagle3Draft(config, 1, (2, 30, 58), torch.empty(config.draft_vocab_size, dtype=torch.int64))
    loop = StaticDraftLoop(draft, TreeConfig(2, 4, 16), get_ops("triton"))
    loop(start_buffers(draft, 8, 4), prefix_buffers(draft, 8, 4096))
""")
    kernels = [usage.kernel for usage in usages]
    assert {"_tree_attention_kernel", "_tree_attention_mla_kernel", "_stretches_kernel", "_build_kernel"} <= set(
        kernels
    )
    assert [usage for usage in usages if not usage.fits] == []


@pytest.mark.gpu
@pytest.mark.parametrize("tree_kv", ["slot", "ancestor"])
@pytest.mark.parametrize(("kind", "keys"), KINDS)
def test_a_graph_gives_the_bits_of_the_same_kernels(kind, keys, tree_kv, tmp_path):
    """Bug: an operation that a capture leaves out, a buffer that another graph overwrites, or a stale input."""
    draft = small_draft(tmp_path, kind, torch.float32, device="cuda", **keys)
    tree = TreeConfig(4, 3, 12, tree_kv)
    graphed = capture_draft_loop(draft, tree, (1, 4), ROOM, get_ops("triton"))
    loop = StaticDraftLoop(draft, tree, get_ops("triton"))
    for batch, bucket in ((4, 4), (3, 4), (1, 1), (2, 4)):
        start, prefix = a_start(draft, batch, 3)
        for buffer, values in zip(graphed.prefix, prefix, strict=True):
            for part, value in zip(buffer, values, strict=True):
                part[:batch] = value
        padded = start_buffers(draft, bucket, 3)
        fill(padded, start)
        eager = cut(loop(padded, [Rows(*(part[:bucket] for part in rows)) for rows in graphed.prefix]), batch)
        got, wanted = tensors(graphed(start)), tensors(eager)
        assert [name for name, value in got.items() if not torch.equal(value, wanted[name])] == []
        assert_same(graphed(start), reference(draft, start, prefix, tree), rtol=1e-3)

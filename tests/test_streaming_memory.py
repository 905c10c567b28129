"""The memory bound of streaming: kept, told when it is too small, and without influence on the bits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sized_kimi
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import StreamedTarget, load_target
from eagle3ref.target.kimi_walk import Work
from eagle3ref.target.streaming import budget, memory

GOLDEN = Path(__file__).parent / "golden" / "kimi_tiny" / "int4"
MIB = 2**20
# 1.3 GB, of which the first MoE layer's experts are INT4. Few heads and a small vocabulary: width is what counts here.
WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 4,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "num_attention_heads": 16,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "vocab_size": 32768,
}
SCRIPT = """
import hashlib, json, re, sys
import torch
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import load_target

folder, bound, lengths = sys.argv[1], int(sys.argv[2]), [int(n) for n in sys.argv[3].split(",")]
dtype = getattr(torch, sys.argv[4])
target = load_target(folder, dtype=dtype, weights="stream", memory=bound)
try:
    parts = target.memory_parts(lengths)
except Eagle3RefError as error:  # then with the least that would do
    bound = int(re.search(r"at least ([0-9,]+) MiB", str(error)).group(1).replace(",", "")) * 2**20
    target = load_target(folder, dtype=dtype, weights="stream", memory=bound)
    parts = target.memory_parts(lengths)
generator = torch.Generator().manual_seed(0)
texts = [torch.randint(target.config.vocab_size, (n,), generator=generator) for n in lengths]
streams, digest = target.embed(texts), hashlib.sha256()
for _ in target.stream_layers(streams):
    digest.update(torch.cat(streams).view(torch.uint8).numpy().tobytes())  # the copy that a recorder may hold
scores = target.score(torch.cat(target.finish(streams)), torch.cat(texts))
digest.update(scores.argmax.numpy().tobytes() + scores.logprob_gap.numpy().tobytes())
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"bound": bound, "peak": peak, "bits": digest.hexdigest(), "read": target.bytes_read, "parts": parts}))
"""


def streamed(bound: int | None) -> StreamedTarget:
    target = load_target(GOLDEN, dtype=torch.float32, weights="stream", memory=bound)
    assert isinstance(target, StreamedTarget)
    return target


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """The process is taken to be of one size: what pytest and other tests allocate is not what is tested."""
    monkeypatch.setattr(budget, "resident_bytes", lambda: 200 * MIB)
    monkeypatch.setattr(budget, "bound_onednn_caches", lambda: None)  # which would last for all other tests


def test_a_bound_that_is_too_small_names_the_least_that_would_do():
    """Bug: 'at least' a number that is refused again, a traceback, or a bound that is ignored."""
    with pytest.raises(Eagle3RefError, match="memory bound of 10 MiB") as caught:
        streamed(10 * MIB).memory_parts([9, 4])
    least = int(re.search(r"at least ([\d,]+) MiB", str(caught.value)).group(1).replace(",", ""))
    parts = streamed(least * MIB).memory_parts([9, 4])
    assert MIB <= least * MIB - sum(parts.values()) < 2 * MIB
    with pytest.raises(Eagle3RefError, match="at least"):
        streamed((least - 2) * MIB).memory_parts([9, 4])
    target = streamed(10 * MIB)
    streams = target.embed([torch.tensor([1, 2])])
    with pytest.raises(Eagle3RefError, match="at least"):
        next(target.stream_layers(streams))
    with pytest.raises(Eagle3RefError, match="at least"):
        target.forward(torch.tensor([[1, 2]]))
    with pytest.raises(Eagle3RefError, match="at least"):
        target.logits(torch.zeros(1, 64))


def test_as_many_tokens_as_are_said_to_fit_do_fit():
    """Bug: capture splits its prompts by a number that the pass then refuses, or by one far too low."""
    target = streamed(10 * MIB)

    @given(bound=st.integers(300, 2000), longest=st.integers(1, 5000))
    def check(bound, longest):
        target._budget.memory = bound * MIB
        tokens = target.max_tokens(longest)
        if tokens == 0:
            with pytest.raises(Eagle3RefError, match="at least"):
                target.memory_parts([longest])
            return
        assert sum(target.memory_parts(in_sequences(tokens, longest)).values()) <= bound * MIB
        assert target.max_tokens(longest, per_token=1000) <= tokens
        if fewer := target.max_tokens(longest, per_token=1000):
            parts = target.memory_parts(in_sequences(fewer, longest))
            assert sum(parts.values()) - parts["read buffers"] + 1000 * fewer <= bound * MIB
        with pytest.raises(Eagle3RefError, match="at least"):
            target.memory_parts(in_sequences(tokens + 60 * MIB // 64, longest))

    check()


def in_sequences(tokens: int, longest: int) -> list[int]:
    return [longest] * (tokens // longest) + ([tokens % longest] if tokens % longest else [])


def test_without_a_bound_everything_fits_and_buffers_stay_small():
    """Bug: no bound means buffers of half the machine's memory."""
    target = streamed(None)
    assert target.max_tokens(1000) == budget.UNBOUNDED
    buffers = target._budget.buffers(Work.of_sequences([1000] * 1000))
    assert buffers.number * buffers.size < 3 * max(target.layer_bytes(i, 10**6) for i in range(7)) + 2 * MIB


def test_the_count_grows_with_what_is_carried():
    """Bug: a term left out of the count: longer sequences, more tokens or a cache that cost nothing."""
    architecture = streamed(None).architecture

    def count(work, dtype=torch.float32):
        return sum(memory.activation_bytes(architecture, dtype, work).values())

    one = Work.of_sequences([100] * 50)
    assert count(Work.of_sequences([100] * 51)) > count(one)
    assert count(Work.of_sequences([5000])) > count(one)
    assert count(Work.of_sequences([100] * 50, cached=True)) > count(one)
    assert count(one._replace(tokens=0, latent=10**6)) > count(one._replace(tokens=0))
    assert count(one, torch.float64) > count(one) > count(one, torch.bfloat16)


@pytest.mark.slow
def test_a_checkpoint_larger_than_the_bound_is_streamed_within_it(tmp_path):
    """Bug: a whole layer, the head or a mapped file in memory; activations or freed memory not counted."""
    folder = sized_kimi.write(tmp_path / "wide", packed_layers=(1,), **WIDE)
    size = sum(file.stat().st_size for file in folder.iterdir())
    results = []
    many = ",".join(["300"] * 9)  # experts see ever other numbers of rows, and freed blocks of all sizes stay
    cases = ((1000 * MIB, "90,300", "float32"), (MIB, "90,300", "float32"), (MIB, "3,5", "float32"))
    for bound, lengths, dtype in (*cases, (MIB, many, "bfloat16")):
        command = [sys.executable, "-c", SCRIPT, str(folder), str(bound), lengths, dtype]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
        assert results[-1]["peak"] <= results[-1]["bound"] < size, results[-1]
    assert results[0]["bound"] == 1000 * MIB > results[1]["bound"] > results[2]["bound"]
    assert results[0]["bits"] == results[1]["bits"]
    assert results[0]["read"] == results[1]["read"] > size - 2**28  # all but the embedding
    assert results[2]["read"] < size  # only the routed experts


MANY_ROW_COUNTS = """
import json, sys
import torch
from eagle3ref.target import load_target
from eagle3ref.target.streaming.memory import resident_bytes

torch.set_num_threads(1)
load_target(sys.argv[1], weights="stream", memory=int(sys.argv[2]) or None)
rows, weight = torch.zeros(300, 512, dtype=torch.bfloat16), torch.zeros(64, 512, dtype=torch.bfloat16)
before = resident_bytes()
for count in range(1, 300):
    torch.nn.functional.linear(rows[:count], weight)
print(json.dumps(resident_bytes() - before))
"""


@pytest.mark.slow
def test_compiled_products_do_not_pile_up_under_a_bound():
    """Bug: every number of rows that an expert meets leaves half a MiB in oneDNN, 0.6 GB over a pass."""
    kept = []
    for bound in (2**30, 0):
        command = [sys.executable, "-c", MANY_ROW_COUNTS, str(GOLDEN), str(bound)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        kept.append(json.loads(done.stdout))
    assert kept[0] < memory.KEPT
    assert kept[1] < memory.KEPT or kept[0] < kept[1] / 2  # some processors need no compiled products

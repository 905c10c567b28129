"""The cache of committed rows: what it shows after rows were kept and sequences left, and what memory it takes."""

from __future__ import annotations

import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ref.nn import KVCache, Rows, kv_cache

LAYERS = 2


def rows_of(values: torch.Tensor) -> list[Rows]:
    """values [B, Q] -> rows of every layer, each number a row of its own."""
    return [Rows(values[:, None, :, None] + 100 * layer, -values[:, None, :, None, None]) for layer in range(LAYERS)]


def shown(cache: KVCache) -> list[list[float]]:
    """What each sequence sees of the first layer; the other parts must be the same."""
    prefixes = cache.prefixes()
    if prefixes is None:
        return [[] for _ in cache.lengths]
    visible = prefixes[0].mask[:, 0, 0]
    lists = [row[seen, 0].tolist() for row, seen in zip(prefixes[0].rows.first, visible, strict=True)]
    for layer, prefix in enumerate(prefixes):
        for row, other, seen, expected in zip(*prefix.rows, visible, lists, strict=True):
            assert (row[seen, 0] - 100 * layer).tolist() == (-other[seen, 0, 0]).tolist() == expected
    return lists


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_what_is_kept_is_what_is_shown(data):
    """Catches a row of another sequence after one left, leftovers of a longer one, and rows lost where buffers grow."""
    cache, expected = KVCache(LAYERS, 3), [[], [], []]
    numbers = iter(range(1, 1000))
    for _ in range(data.draw(st.integers(1, 6))):
        size, batch = data.draw(st.integers(1, 40)), len(expected)
        values = torch.tensor([[float(next(numbers)) for _ in range(size)] for _ in range(batch)])
        counts = data.draw(st.lists(st.integers(0, size), min_size=batch, max_size=batch))
        rows = torch.tensor([data.draw(st.permutations(range(size))) for _ in range(batch)])
        cache.offer(rows_of(values))
        cache.keep(rows, torch.tensor(counts))
        for b in range(batch):
            expected[b] += values[b][rows[b, : counts[b]]].tolist()
        if batch > 1 and data.draw(st.booleans()):
            stay = data.draw(st.permutations(range(batch)))[: data.draw(st.integers(1, batch))]
            cache.select(torch.tensor(stay))
            expected = [expected[b] for b in stay]
        assert cache.lengths.tolist() == [len(row) for row in expected]
        assert shown(cache) == expected


def test_a_sequence_that_leaves_gives_its_memory_back():
    """Catches a cache as wide as the longest prompt for the short ones that are still open."""
    cache = KVCache(LAYERS, 2)
    cache.fill(rows_like(2, 1000), torch.tensor([1000, 10]))
    assert cache.num_bytes == LAYERS * 2 * 1000 * 2 * 4
    cache.select(torch.tensor([1]))
    assert cache.num_bytes == LAYERS * 1 * 10 * 2 * 4


def test_growth_is_an_eighth_and_one_layer_at_a_time(monkeypatch):
    """Catches doubling, and a second copy of all layers: either is 7 GB for 100 prompts of Kimi-K2.5."""
    cache = KVCache(LAYERS, 1)
    cache.fill(rows_like(1, 1600), torch.tensor([1600]))
    full, alive, outgrown = cache.num_bytes, [], []
    with_room = kv_cache._with_room

    def spied(buffer: torch.Tensor, *inputs: object) -> torch.Tensor:
        alive.append(sum(old() is not None for old in outgrown))
        outgrown.append(weakref.ref(buffer))
        return with_room(buffer, *inputs)

    monkeypatch.setattr(kv_cache, "_with_room", spied)
    cache.offer([Rows(*(part[:, None] for part in rows)) for rows in rows_like(1, 1)])
    cache.keep(torch.tensor([[0]]), torch.tensor([1]))
    assert cache.num_bytes == full * 9 // 8
    assert alive == [0, 1, 0, 1]  # the two buffers of a layer; those of the layer before are gone


def rows_like(batch: int, length: int) -> list[Rows]:
    return [Rows(torch.zeros(batch, length, 1), torch.zeros(batch, length, 1, 1)) for _ in range(LAYERS)]

"""Prompts into a cache: the states that are left of them, whichever way they go through the target."""

from __future__ import annotations

import pytest
import tiny
import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import LayerMajorTarget
from eagle3ref.target.generate import Sampling
from eagle3ref.target.kimi_walk import KimiWalk
from eagle3ref.target.prefill import prefill_states

LENGTHS = (5, 1, 9)
POINTS = (0, 2, 3, tiny.NUM_LAYERS)


@pytest.mark.parametrize("layer_major", [True, False])
def test_states_and_rows_are_those_of_each_prompt_alone(layer_major, monkeypatch):
    """Catches a capture point one layer off, the embedding or the last stream left out, and another prompt's rows."""
    target = tiny.random_target().double()
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(tiny.VOCAB, (length,), generator=generator) for length in LENGTHS]
    if not layer_major:
        monkeypatch.delattr(KimiWalk, "stream_layers")
        monkeypatch.setattr("eagle3ref.target.prefill.BLOCK_ROWS", 4)
    assert isinstance(target, LayerMajorTarget) == layer_major
    cache = target.new_cache(len(prompts))
    states = prefill_states(target, prompts, cache, capture_points=POINTS)
    assert cache.lengths.tolist() == list(LENGTHS)
    following = torch.tensor([[3], [4], [5]])
    behind = target.forward(following, cache=cache).final_hidden_state
    for i, prompt in enumerate(prompts):
        alone = target.forward(prompt[None], capture_points=POINTS)
        expected = torch.cat([alone.aux_hidden_states[point][0] for point in POINTS], -1)
        torch.testing.assert_close(states.aux[i], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(states.last[i], alone.final_hidden_state[0, -1], rtol=1e-9, atol=1e-9)
        whole = target.forward(torch.cat((prompt, following[i]))[None]).final_hidden_state
        torch.testing.assert_close(behind[i, 0], whole[0, -1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("points", [(2, tiny.NUM_LAYERS + 1), (3, 2)])
def test_a_capture_point_that_is_not_there_is_refused(points):
    """Catches states that nobody wrote: the layer-by-layer way captures as it comes by, and never came there."""
    target = tiny.random_target()
    with pytest.raises(Eagle3RefError, match="capture points"):
        prefill_states(target, [torch.tensor([1])], target.new_cache(1), capture_points=points)


def test_numbers_of_a_stream_do_not_depend_on_where_one_begins():
    """Catches rounds that skip numbers of their stream, or use some twice."""
    sampling = Sampling(temperature=1.0, seed=7)
    whole = sampling.uniforms(3, 40)
    assert torch.equal(torch.cat([sampling.uniforms(3, 9, first=4), sampling.uniforms(3, 27, first=13)]), whole[4:])
    assert not torch.equal(sampling.uniforms(4, 40), whole)

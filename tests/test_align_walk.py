"""What a dump is held against: the boundaries that pass by are the target's own, streamed or not, all of them."""

import pytest
import torch
from made_dumps import texts
from tiny import NUM_LAYERS, random_target, target_folder
from torch import Tensor

from eagle3ref.align import Boundary
from eagle3ref.align.walk import walk_target
from eagle3ref.target import Target, load_target

KINDS = {"stream", "input_norm", "attention", "after_attention", "mlp_norm", "mlp"}


def walked(target: Target, sequences: list[Tensor]) -> tuple[dict[Boundary, list[Tensor]], list[int]]:
    seen: dict[Boundary, list[Tensor]] = {}
    layers: list[int] = []

    def visit(boundary, states):
        assert boundary not in seen  # a place shown twice would be its own runner-up
        seen[boundary] = [state.clone() for state in states]

    walk_target(target, sequences, visit, layers.append)
    return seen, layers


def test_streams_and_final_state_are_those_of_a_forward():
    target, sequences = random_target(), texts(2)
    seen, layers = walked(target, sequences)
    assert layers == list(range(1, NUM_LAYERS + 1))
    assert len(seen) == NUM_LAYERS * len(KINDS) + 2
    for number, tokens in enumerate(sequences):
        output = target.forward(tokens[None], capture_points=range(NUM_LAYERS + 1))
        for point, state in output.aux_hidden_states.items():
            torch.testing.assert_close(seen[Boundary("stream", point, NUM_LAYERS)][number], state[0])
        final = seen[Boundary("final_norm", NUM_LAYERS, NUM_LAYERS)][number]
        torch.testing.assert_close(final, output.final_hidden_state[0])


def test_the_halves_of_a_layer_are_what_its_modules_give():
    # The oracle calls the modules one by one, on one sequence, with a mask.
    target, tokens = random_target(), texts(1)[0]
    seen, _ = walked(target, [tokens])
    rows = torch.arange(len(tokens))
    for index, layer in enumerate(target.model.layers):
        place = {kind: seen[Boundary(kind, index, NUM_LAYERS)][0] for kind in KINDS}
        normed = layer.input_layernorm(place["stream"])
        attended, _ = layer.self_attn(normed[None, None], rows[None, None], mask=rows[:, None] >= rows, prefix=None)
        middle = place["stream"] + attended[0, 0]
        again = layer.post_attention_layernorm(middle)
        expected = {"input_norm": normed, "attention": attended[0, 0], "after_attention": middle, "mlp_norm": again}
        for kind, values in {**expected, "mlp": layer.mlp(again[None, None])[0, 0]}.items():
            torch.testing.assert_close(place[kind], values, rtol=1e-4, atol=1e-5, msg=f"{kind} of layer {index}")


def test_a_streamed_target_shows_the_same_bits(tmp_path):
    folder = target_folder(tmp_path / "target")
    sequences = texts(2)
    resident, _ = walked(load_target(folder, dtype=torch.float32), sequences)
    streamed, _ = walked(load_target(folder, dtype=torch.float32, weights="stream"), sequences)
    assert list(streamed) == list(resident)
    for boundary, states in resident.items():
        assert all(map(torch.equal, states, streamed[boundary])), boundary


@pytest.mark.slow  # transformers takes seconds to import
def test_a_transformers_model_shows_its_halves_where_its_norms_have_the_usual_names():
    from tiny_transformers import CONFIGS, random_model

    from eagle3ref.target.transformers import TransformersTarget

    model = TransformersTarget(random_model(*CONFIGS["qwen3"]))
    seen, layers = walked(model, texts(2, vocab_size=model.config.vocab_size))
    depth = model.config.num_layers
    assert layers == list(range(1, depth + 1))
    assert {boundary.kind for boundary in seen} == KINDS | {"final_norm"}
    for index in range(depth):
        place = {kind: seen[Boundary(kind, index, depth)][0] for kind in KINDS}
        layer = model.model.model.layers[index]
        torch.testing.assert_close(place["input_norm"], layer.input_layernorm(place["stream"]))
        torch.testing.assert_close(place["mlp"], layer.mlp(place["mlp_norm"]), rtol=1e-4, atol=1e-5)
        following = seen[Boundary("stream", index + 1, depth)][0]
        torch.testing.assert_close(place["after_attention"] + place["mlp"], following)

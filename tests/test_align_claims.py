"""What labels say: names that people give to layers, and names that say nothing."""

import pytest
from made_dumps import make_dump, texts, three
from tiny import NUM_LAYERS, random_target

from eagle3ref.align import Boundary, align, parse_claim
from eagle3ref.errors import Eagle3RefError

TARGET = random_target()


@pytest.mark.parametrize(
    ("label", "points"),
    [
        ("embed", (0, 0)),
        ("embed_tokens", (0, 0)),
        ("wte", (0, 0)),
        ("layer-1", (0, 0)),
        ("-1", (0, 0)),
        ("-2", None),
        ("layer-31", (31, 32)),
        ("layer3", (3, 4)),
        ("layer_31", (31, 32)),
        ("layers.30", (30, 31)),
        ("model.layers.30", (30, 31)),
        ("31", (31, 32)),
        ("layers.30.output", (31, 31)),
        ("layer_30_input", (30, 30)),
        ("input_30", (30, 30)),
        ("output.30", (31, 31)),
        ("hidden_states_3", (3, 3)),
        ("hidden_states[3]", (3, 3)),
        ("final", (61, 61)),
        ("last_hidden_state", (61, 61)),
        ("aux_0", None),
        ("state_2", None),
        ("slot_1", None),
        ("hidden, part 2", None),
        ("x", None),
    ],
)
def test_a_label_is_read_as_people_mean_it(label: str, points: tuple[int, int] | None):
    claim = parse_claim(label, 61)
    assert (None if claim is None else (claim.as_input, claim.as_output)) == points


def test_a_bare_number_may_be_an_input_or_an_output_but_not_both():
    # All labels of one dump are read alike: layer2 as an output and layer4 as an input is a mistake.
    def verdict(*points: int) -> str:
        dump = make_dump(TARGET, three(*points), sequences=texts(1))
        return align(dump, TARGET, claimed=("layer2", "layer4"), max_tokens=10).verdict

    assert [verdict(2, 4), verdict(3, 5), verdict(3, 4)] == ["right", "right", "wrong"]


def test_how_the_numbers_were_read_is_said():
    dump = make_dump(TARGET, three(3, 5), sequences=texts(1))
    found = align(dump, TARGET, claimed=("layer2", "layer4"), max_tokens=10)
    assert found.sentence.startswith('The labels "layer2", "layer4" are right, as outputs of layers: these states are')


def test_names_that_do_not_fit_are_bad_input():
    # Before the target runs, which takes hours where it is streamed.
    dump, done = make_dump(TARGET, three(3, 5), sequences=texts(1)), []
    with pytest.raises(Eagle3RefError, match="2 names"):
        align(dump, TARGET, claimed=("embed",), max_tokens=4, on_layer=done.append)
    with pytest.raises(Eagle3RefError, match="the name 'what'"):
        align(dump, TARGET, claimed=("embed", "what"), max_tokens=4, on_layer=done.append)
    assert done == []


def test_only_streams_have_capture_points():
    assert Boundary("stream", 3, NUM_LAYERS).capture_point == 3
    assert Boundary("mlp", 3, NUM_LAYERS).capture_point is None
    assert str(Boundary("stream", NUM_LAYERS, NUM_LAYERS)) == "state before the final norm (output of layer 6)"

"""A trace in place of the target: what it recorded is told, what it did not record is not guessed."""

from pathlib import Path

import pytest
import torch
from made_dumps import make_dump, texts, three
from tiny import random_target

from eagle3ref.align import align
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt, Trace, capture

TARGET = random_target()


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    """Points 2, 3, 4 of the two texts, under other ids than the dump's and in another order."""
    prompts = [Prompt(f"recorded-{number}", tokens[:5], tokens[5:]) for number, tokens in enumerate(texts())]
    path = tmp_path_factory.mktemp("traces") / "trace"
    return capture(TARGET, prompts[::-1], path, capture_points=(2, 3, 4), final_hidden_state=True)


def test_sequences_are_found_by_their_tokens(trace):
    found = align(make_dump(TARGET, three(2, 3, 4), points=(2, 3, 4)), trace)
    assert found.verdict == "right"
    assert found.num_sequences == 2
    assert all(match.best is not None and match.best.error < 1e-5 for match in found.matches)


def test_a_neighbor_that_was_not_recorded_is_not_ruled_out(trace):
    # 3 has both its neighbors in the trace. 2 has not: point 1 might be nearer to a dump that is 5 % off.
    found = align(make_dump(TARGET, three(3, 2), noise=0.05, points=(3, 2)), trace)
    assert [match.verdict for match in found.matches] == ["same", "ambiguous"]
    assert found.verdict == "cannot tell"
    assert "the trace does not hold point 1 to compare it with" in found.sentence


def test_a_layer_that_was_not_recorded_is_not_given_the_name_of_another(trace):
    found = align(make_dump(TARGET, three(6), points=(6,)), trace)
    assert found.matches[0].boundary is None
    assert "give the target's folder" in found.sentence
    assert found.notes[-1].startswith("the trace holds points 2, 3, 4; others")


def test_wrong_labels_are_seen_beside_a_trace_too(trace):
    found = align(make_dump(TARGET, three(3), noise=0.01, points=(2,)), trace)
    assert found.verdict == "wrong"
    assert found.capture_points == (3,)


def test_only_tokens_in_common_are_compared(trace):
    # From token 5 on the texts differ, and so do all states: only the 5 before are compared, a third of the rows.
    changed = [torch.cat((tokens[:5], (tokens[5:] + 1) % 90)) for tokens in texts()]
    found = align(make_dump(TARGET, three(3), sequences=changed, points=(3,)), trace)
    assert found.matches[0].num_rows == 10
    assert found.matches[0].best is not None
    assert found.matches[0].best.error < 1e-5


def test_texts_that_were_not_recorded_are_left_out_or_refused(trace):
    other = torch.arange(12)
    found = align(make_dump(TARGET, three(3), sequences=[*texts(1), other], points=(3,)), trace)
    assert found.num_sequences == 1
    assert "1 sequences of the dump are not in the trace and were left out" in found.notes
    with pytest.raises(Eagle3RefError, match="no sequence that starts like one of the 1 of the dump"):
        align(make_dump(TARGET, three(3), sequences=[other]), trace)


def test_a_dump_without_tokens_takes_those_of_its_id(trace, tmp_path: Path):
    prompts = [Prompt(f"text-{n}", t[:5], t[5:]) for n, t in enumerate(texts())]
    same_ids = capture(TARGET, prompts, tmp_path / "trace", capture_points=(2, 3, 4))
    found = align(make_dump(TARGET, three(3), points=(3,), noise=0.01, with_tokens=False), same_ids)
    assert found.verdict == "right"
    with pytest.raises(Eagle3RefError, match="no tokens of sequence 'text-0'"):
        align(make_dump(TARGET, three(3), with_tokens=False), trace)

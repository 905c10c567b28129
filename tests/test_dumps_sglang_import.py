"""From dumps of a real SGLang to traces: the same acceptance as the target's own capture, and refusals that help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded_dumps import GOLDEN, POINTS, SGLANG, TARGET, error, prompts_of, target

import eagle3ref as e3
from eagle3ref.dumps import import_dump
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt

ROUNDING = 2.0  # as in test_dumps_sglang.py


def named(name: str) -> list[Prompt]:
    """The prompts of a dump under the ids of its sequences."""
    return [Prompt(f"request_{i}", prompt.tokens, prompt.answer) for i, prompt in enumerate(prompts_of(name).values())]


@pytest.mark.parametrize(("name", "num_steps"), [("hook", 1), ("hook-lists", 1), ("hook-draft", 3), ("draft", 3)])
def test_imported_states_are_what_capture_records(name: str, num_steps: int, tmp_path: Path) -> None:
    """Would catch rows, tokens or layers that are shifted between the reader and the trace: acceptance would differ."""
    own = target(torch.float32)
    draft = e3.load_draft(GOLDEN / "engines" / "draft", target=own, capture_points=POINTS, dtype=torch.float32)
    imported = import_dump(
        SGLANG / name, tmp_path / "imported", target=TARGET, prompts=named(name), skip_damaged=name == "draft"
    )
    tokens, prompt_length = imported[0].tokens, imported[0].prompt_length
    again = Prompt("request_0", tokens[:prompt_length], tokens[prompt_length:])
    captured = e3.capture(own, [again], tmp_path / "captured", capture_points=POINTS, final_hidden_state=True)
    assert imported.header.capture_points == POINTS
    for point in POINTS:
        assert error(imported[0].aux_hidden_states[point], tokens, 0, point) < ROUNDING
    assert imported[0].argmax is None or torch.equal(imported[0].argmax, captured[0].argmax)
    tree = e3.TreeConfig(num_steps, topk=2, num_draft_tokens=2 * num_steps)
    counted, wanted = (e3.replay(trace, draft, tree).to_dict() for trace in (imported, captured))
    # Responses have no final states, without which it is not known whether the answers are the target's own.
    differing = {"kind", "kind_meaning"} if name == "draft" else set()
    assert {key for key in wanted if counted[key] != wanted[key]} == differing


def test_responses_with_missing_rows_are_named_and_the_others_imported(tmp_path: Path) -> None:
    """Would catch a trace that begins in the middle of a prompt, or a refusal that does not say which responses."""
    with pytest.raises(Eagle3RefError, match="3 of 6 sequences") as caught:
        import_dump(SGLANG / "aux", tmp_path / "trace", target=TARGET)
    assert "positions 16 to 24 only" in str(caught.value)
    assert "positions 20 to 22 only" in str(caught.value)
    trace = import_dump(SGLANG / "aux", tmp_path / "trace", target=TARGET, skip_damaged=True)
    assert [len(sequence.tokens) for sequence in map(trace.sequence, trace.ids)] == [13, 4, 5]
    for sequence in map(trace.sequence, trace.ids):
        assert error(sequence.aux_hidden_states[4], sequence.tokens, 0, 4) < ROUNDING


def test_capture_points_can_be_given(tmp_path: Path) -> None:
    """They override what the server's settings say."""
    given = (1, 3, 6)
    trace = import_dump(SGLANG / "hook", tmp_path / "trace", target=TARGET, prompts=named("hook"), capture_points=given)
    assert trace.header.capture_points == given


def test_final_states_alone_are_refused_with_the_flag(tmp_path: Path) -> None:
    """Would catch final states imported as captured ones, whatever capture points are given."""
    for given in (None, (2,)):
        with pytest.raises(Eagle3RefError, match="EAGLE"):
            import_dump(SGLANG / "eagle-flag", tmp_path / "trace", target=TARGET, capture_points=given)
    assert not (tmp_path / "trace").exists()

"""A corpus against a draft's vocabulary: what is outside, and the acceptance that this leaves possible."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from eagle3ref import Eagle3RefError, TreeConfig, capture, load_draft, load_target, nano, read_prompts, replay
from eagle3ref.cli import app
from eagle3ref.inspection import inspect_draft
from eagle3ref.inspection.corpus import Corpus, ceiling, check_coverage, measure_coverage


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "160"})


def corpus_of(*answers: list[int]) -> Corpus:
    tokens = tuple(torch.tensor(answer) for answer in answers)
    return Corpus("tokens", tokens, tokens)


@pytest.fixture(scope="module")
def nano_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten answers of the nano target with what its draft needs."""
    path = tmp_path_factory.mktemp("corpus") / "trace"
    target = load_target(nano.target_path())
    prompts, _ = read_prompts(nano.prompts_path(), nano.target_path())
    capture(target, prompts[:10], path, capture_points=(2, 4, 5), max_new_tokens=64)
    return path


def test_coverage_by_hand() -> None:
    """Would catch shares over distinct tokens instead of occurrences, or prompts counted as tokens to propose."""
    corpus = Corpus("tokens", (torch.tensor([1, 1, 9, 2]), torch.tensor([9, 8])), (torch.tensor([5, 1, 1, 9, 2]),) * 2)
    found = measure_coverage(corpus, torch.tensor([1, 2, 3]), 10)
    assert (found.outside.numerators.tolist(), found.outside.denominators.tolist()) == ([1, 2], [4, 2])
    assert found.missing == ((9, 2), (8, 1))
    assert (found.unused_rows, found.num_rows) == (1, 3)
    assert found.unused_embeddings == 10 - 4  # 1, 2, 5 and 9 occur in the texts
    assert found.best_outside == pytest.approx(1 / 6)  # 1, 9 and one of 2 and 8 would leave one token out


def test_ceiling_by_hand() -> None:
    """Would catch the token that the target gives itself counted against the vocabulary, or a round past the end."""
    yes, no = True, False
    # Roots 0, 3 (it is the bonus, though unknown), 6; the round from 6 would look past the end.
    ratio = ceiling([[yes, yes, yes, no, yes, yes, yes, yes]], 2)
    assert (ratio.numerators.tolist(), ratio.denominators.tolist()) == ([6], [2])
    # Unknown tokens everywhere: each round commits only its bonus.
    assert ceiling([[no] * 6], 3).value == 1
    assert ceiling([[yes] * 20], 3).value == 4
    assert ceiling([[yes] * 3], 3).denominators.tolist() == [0]


@given(
    covered=st.lists(st.booleans(), min_size=1, max_size=40),
    steps=st.integers(1, 5),
    data=st.data(),
)
def test_no_draft_is_ahead_of_the_ceiling(covered: list[bool], steps: int, data: st.DataObject) -> None:
    """Would catch a ceiling that some draft beats: any other choice of how many to keep is behind after any round."""
    best = other = 0
    while best + steps < len(covered):
        ahead = covered[best + 1 : best + 1 + steps]
        best += (ahead.index(False) if False in ahead else steps) + 1
        run_ahead = covered[other + 1 : other + 1 + steps]
        possible = run_ahead.index(False) if False in run_ahead else len(run_ahead)
        other += data.draw(st.integers(0, possible)) + 1
        assert other <= best
    ratio = ceiling([covered], steps)
    assert ratio.numerators.tolist() == [best]


def test_the_nano_draft_stays_below_its_ceiling(nano_trace: Path) -> None:
    """Would catch a ceiling that a real replay breaks."""
    draft = load_draft(nano.draft_path(), target=nano.target_path())
    corpus = Corpus.read(nano_trace, nano.draft_path())
    assert corpus.trace is not None
    found = measure_coverage(corpus, draft.target_ids, 1024)
    for depth in (1, 3, 5):
        counts = replay(corpus.trace, draft, TreeConfig(depth, 1, depth + 1))
        assert counts.acceptance_length < found.ceilings[depth].value <= depth + 1


def test_much_outside_is_odd_and_says_what_is_possible() -> None:
    """Would catch a vocabulary of another language that passes, or an alarm on the usual few per cent."""
    ids = torch.arange(50)
    fine = measure_coverage(corpus_of([*range(50), *range(50), 60, 61]), ids, 100)
    assert list(check_coverage(fine)) == []
    poor = measure_coverage(corpus_of([*range(10), *range(50, 60)]), ids, 100)
    (finding,) = check_coverage(poor)
    assert "leaves out 50.0 %" in finding.found
    assert "at most 50.0 %" in finding.meaning
    assert "leave out 0.0 %" in finding.meaning


def test_full_vocabulary_covers_everything() -> None:
    """Would catch a best map that divides by what is not there."""
    found = measure_coverage(corpus_of([1, 2, 3, 4, 5, 6]), torch.arange(10), 10)
    assert (found.outside.value, found.best_outside, found.missing) == (0, 0, ())
    assert found.ceilings[3].value == 4


def test_answers_count_where_there_are_any(tmp_path: Path) -> None:
    """Would catch prompts mixed with answers: a draft never has to propose a prompt."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"tokens": [1, 2], "answer_tokens": [3, 4]}\n{"tokens": [5, 6]}\n')
    found = Corpus.read(path, tmp_path)
    assert [answer.tolist() for answer in found.answers] == [[3, 4]]
    assert [text.tolist() for text in found.texts] == [[1, 2, 3, 4]]
    path.write_text('{"tokens": [5, 6]}\n')
    found = Corpus.read(path, tmp_path)
    assert [answer.tolist() for answer in found.answers] == [[5, 6]]
    assert "no answers" in found.source


def test_a_corpus_of_another_target_is_refused(tmp_path: Path) -> None:
    """Would catch an index error, or ids that wrap around."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"tokens": [5, 5000]}\n')
    found = inspect_draft(nano.draft_path(), corpus=path)
    assert found.problem is not None
    assert "token 5000" in found.problem.found
    with pytest.raises(Eagle3RefError):
        inspect_draft(nano.draft_path(), corpus=tmp_path / "gone.jsonl")


def test_command_prints_the_ceiling(nano_trace: Path, tmp_path: Path) -> None:
    """Would catch numbers that only the library has."""
    result = run(nano.draft_path(), "--target", nano.target_path(), "--corpus", nano_trace)
    assert result.exit_code == 0, result.stderr
    for words in ("640 generated tokens of the trace", "can be accepted", "at num_steps 3", "states of the trace"):
        assert words in result.stdout
    document = json.loads(run(nano.draft_path(), "--corpus", nano_trace, "--json").stdout)
    assert document["measured"]["coverage"]["outside"]["denominator_sum"] == 640
    path = tmp_path / "one.jsonl"
    path.write_text('{"tokens": [5]}\n')
    assert "answers too short" in run(nano.draft_path(), "--corpus", path).stdout


def test_json_of_all_kinds(nano_trace: Path, tmp_path: Path) -> None:
    """Would catch a field that JSON cannot hold."""
    for path, kind in ((nano.draft_path(), "draft"), (nano.target_path(), "target"), (nano_trace, "trace")):
        result = run(path, "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["kind"] == kind
    config, tensors = tiny.draft_parts()
    tensors["norm.weight"][0] = torch.nan
    result = run(tiny.write_draft(tmp_path / "draft", config, tensors), "--json")
    assert result.exit_code == 2
    assert "norm.weight" in json.loads(result.stdout)["problem"]["found"]


def test_a_fault_in_the_weights_is_an_exit_status(tmp_path: Path) -> None:
    """Would catch a dead draft that a pipeline deploys: it loads, and accepts nothing."""
    config, tensors = tiny.draft_parts()
    tensors["lm_head.weight"].zero_()
    result = run(tiny.write_draft(tmp_path / "draft", config, tensors))
    assert result.exit_code == 1
    assert "fault: lm_head.weight is all zeros" in result.stdout
    assert "nothing found" not in result.stdout


def test_options_of_another_kind_are_refused(nano_trace: Path) -> None:
    """Would catch an option that is ignored and looks honoured."""
    refused = [
        (nano_trace, "--target", nano.target_path()),
        (nano_trace, "--corpus", nano_trace),
        (nano_trace, "--capture-points", "2,4,5"),
        (nano.target_path(), "--target", nano.target_path()),
        (nano.target_path(), "--check"),
        (nano.draft_path(), "--check"),
    ]
    for arguments in refused:
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert "only for" in " ".join(result.stderr.split()), arguments

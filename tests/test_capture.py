"""Capture: what is recorded, and that it depends on nothing but the prompts and the settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from streamed_captures import InBlocks
from tiny import VOCAB, target_folder

import eagle3ref as e3
from eagle3ref.target.generate import generate
from eagle3ref.trace.prompts import tokenizer_sha256

POINTS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> e3.Target:
    """A random Kimi-shaped target in fp64."""
    return e3.load_target(target_folder(tmp_path_factory.mktemp("target")), dtype=torch.float64)


@pytest.fixture(scope="module")
def prompts() -> list[e3.Prompt]:
    generator = torch.Generator().manual_seed(3)
    return [
        e3.Prompt(f"p{i}", torch.randint(VOCAB - 3, (length,), generator=generator))
        for i, length in enumerate((5, 1, 9, 3, 12))
    ]


def capture(target: e3.Target, prompts: list[e3.Prompt], path: Path, **settings) -> e3.Trace:
    return e3.capture(target, prompts, path, capture_points=POINTS, **{"max_new_tokens": 10, **settings})


def test_states_are_those_of_each_sequence_alone(target, prompts, tmp_path):
    """Catches padding that leaks into states, states of another sequence, and argmax rows shifted by one."""
    trace = capture(target, prompts, tmp_path / "t", final_hidden_state=True)
    answers = generate(target, [prompt.tokens for prompt in prompts], max_new_tokens=10)
    for prompt, answer, sequence in zip(prompts, answers, trace, strict=True):
        assert sequence.tokens.tolist() == [*prompt.tokens.tolist(), *answer.tolist()]
        alone = target.forward(sequence.tokens[None], capture_points=POINTS)
        for point in POINTS:
            torch.testing.assert_close(sequence.aux_hidden_states[point], alone.aux_hidden_states[point][0])
        torch.testing.assert_close(sequence.final_hidden_state, alone.final_hidden_state[0])
        assert sequence.argmax[prompt.tokens.shape[0] - 1 : -1].tolist() == answer.tolist()  # greedy: nothing off


def test_prefill_in_blocks_changes_nothing(target, prompts, tmp_path, monkeypatch):
    """Catches rows lost, doubled or shifted where a block of a long prompt ends."""
    whole = capture(target, prompts, tmp_path / "whole")
    monkeypatch.setattr(sys.modules["eagle3ref.target.prefill"], "BLOCK_ROWS", 4)
    for expected, found in zip(whole, capture(InBlocks(target), prompts, tmp_path / "blocks"), strict=True):
        assert found.tokens.tolist() == expected.tokens.tolist()
        for point in POINTS:
            torch.testing.assert_close(found.aux_hidden_states[point], expected.aux_hidden_states[point])


def test_sampled_answers_do_not_depend_on_the_batch(target, prompts, tmp_path):
    """Catches random numbers drawn in the order of batches: another batch size would be another trace."""
    sampling = e3.Sampling(temperature=1.0, top_p=0.9, seed=7)
    traces = [capture(target, prompts, tmp_path / str(size), sampling=sampling, batch_size=size) for size in (1, 2, 5)]
    answers = [[sequence.tokens.tolist() for sequence in trace] for trace in traces]
    assert answers[0] == answers[1] == answers[2]
    other = capture(target, prompts, tmp_path / "other", sampling=e3.Sampling(temperature=1.0, top_p=0.9, seed=8))
    assert [sequence.tokens.tolist() for sequence in other] != answers[0]


def test_stopped_capture_goes_on_to_the_same_bytes(target, prompts, tmp_path):
    """Catches prompts lost, doubled, or put into another batch when a capture is resumed in the middle of one."""
    whole = capture(target, prompts, tmp_path / "whole", batch_size=3)

    class StopError(Exception):
        pass

    def stop(sequence):
        if sequence.id == "p1":
            raise StopError

    with pytest.raises(StopError):
        capture(target, prompts, tmp_path / "t", batch_size=3, on_sequence=stop)
    assert e3.Trace.open(tmp_path / "t").ids == ("p0", "p1")
    resumed = []
    trace = capture(target, prompts, tmp_path / "t", batch_size=3, on_sequence=lambda s: resumed.append(s.id))
    assert resumed == ["p2", "p3", "p4"]
    assert [entry.sha256 for entry in trace.entries] == [entry.sha256 for entry in whole.entries]


def test_given_answers_are_recorded_as_they_are(target, prompts, tmp_path):
    """Catches answers of a server that are replaced by the target's own, and an off-argmax count that looks away."""
    answer = torch.tensor([5, 6, 7])
    trace = capture(target, [e3.Prompt("a", prompts[0].tokens, answer), prompts[1]], tmp_path / "t")
    assert trace.sequence("a").tokens[-3:].tolist() == [5, 6, 7]
    assert len(trace.sequence("p1").tokens) == len(prompts[1].tokens) + 10


def test_another_prompt_under_a_known_id_is_refused(target, prompts, tmp_path):
    """Catches a trace that silently keeps the old sequence under a new prompt's name."""
    capture(target, prompts[:2], tmp_path / "t")
    with pytest.raises(e3.Eagle3RefError, match="capturing prompt 'p1'.*other tokens under this id"):
        capture(target, [prompts[0], e3.Prompt("p1", prompts[2].tokens)], tmp_path / "t")
    with pytest.raises(e3.Eagle3RefError, match="max_new_tokens"):
        capture(target, prompts, tmp_path / "t", max_new_tokens=11)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([], dtype=torch.int64), "found no token"),
        (torch.tensor([1, VOCAB]), f"token id {VOCAB}; expected ids 0 to {VOCAB - 1}"),
        (torch.tensor([1, -1]), "token id -1"),
        (torch.zeros(262144, dtype=torch.int64), "max_position_embeddings"),
    ],
    ids=["empty", "too large", "negative", "too long"],
)
def test_bad_prompt_is_named_and_nothing_is_written(target, prompt, message, tmp_path):
    """Catches prompts that fail in the middle of a capture, or worse, do not."""
    with pytest.raises(e3.Eagle3RefError, match=message):
        capture(target, [e3.Prompt("bad", prompt)], tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_prompt_files_of_ids_text_and_messages(tmp_path):
    """Catches text and chat prompts that bypass the target folder's own tokenizer and template."""
    folder = e3.nano.target_path()
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = [
        {"id": "ids", "tokens": [1, 2, 3], "answer_tokens": [4]},
        {"text": "def f(x):"},
        {"messages": [{"role": "user", "content": "import "}, {"role": "user", "content": "os"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    prompts, sha256 = e3.read_prompts(path, folder)
    assert [prompt.id for prompt in prompts] == ["ids", "2", "3"]
    assert prompts[0].answer.tolist() == [4]
    assert prompts[1].tokens.tolist() == tokenizer.encode("def f(x):").ids
    assert prompts[2].tokens.tolist() == tokenizer.encode("import os").ids
    assert sha256 == tokenizer_sha256(folder)
    path.write_text(json.dumps(lines[0]))
    assert e3.read_prompts(path, folder)[1] is None  # token ids alone depend on no tokenizer
    assert len(e3.read_prompts(path, None)[0]) == 1
    path.write_text('{"text": "some words"}\n')
    with pytest.raises(e3.Eagle3RefError, match="text or messages, and no target"):
        e3.read_prompts(path, None)


@pytest.mark.parametrize("first", [True, False])
def test_a_trace_does_not_mix_sequences_with_and_without_final_states(target, prompts, tmp_path, first):
    """Catches a resumed capture that leaves half of the trace without the states that were asked for."""
    capture(target, prompts[:2], tmp_path / "t", final_hidden_state=first)
    with pytest.raises(e3.Eagle3RefError, match=f"record {'with' if first else 'without'} its final hidden state"):
        capture(target, prompts, tmp_path / "t", final_hidden_state=not first)
    assert len(capture(target, prompts, tmp_path / "t", final_hidden_state=first)) == len(prompts)


def test_what_editors_make_of_a_prompt_file_reads(tmp_path):
    """Catches a byte order mark taken for JSON, and strings cut at separators that JSON lets stand in them."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + '{"id": "a\u2028b\x85c", "tokens": [1]}\r\n\r\n  \n{"id": 7, "tokens": [2]}'.encode()
    )
    prompts, _ = e3.read_prompts(path, tmp_path)
    assert [(prompt.id, prompt.tokens.tolist()) for prompt in prompts] == [("a\u2028b\x85c", [1]), ("7", [2])]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"tokens": [1.0]}', "tokens that are no ids"),
        ('{"tokens": [true]}', "tokens that are no ids"),
        ('{"tokens": [18446744073709551616]}', "tokens that are no ids"),
        ("[" * 100_000, "no JSON"),
        ("9" * 5000, "no JSON"),
        ('{"tokens": [1], "id": null}', "id None"),
        ('{"tokens": [1], "id": true}', "id True"),
        ('{"tokens": [1], "id": ""}', "id ''"),
        ('{"tokens": [1], "id": "\\ud800"}', "id '.ud800'"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line, found, tmp_path):
    """Catches a traceback, an id that is refused after its answer was generated, and an id that stands for nothing."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"tokens": [1]}\n' + line)
    with pytest.raises(e3.Eagle3RefError, match=f"line 2: found {found}"):
        e3.read_prompts(path, tmp_path)


@pytest.mark.parametrize(
    ("prompt", "template", "found"),
    [
        ({"text": "\ud800"}, "{{ 1 }}", "text with half a surrogate pair"),
        ({"text": 1}, "{{ 1 }}", "text of type int"),
        ({"messages": [{"role": "x"}]}, "{{ raise_exception('unknown role') }}", "TemplateError: unknown role"),
        ({"messages": [{"role": "x"}]}, "{{ messages[0].content.y.z }}", "UndefinedError"),
        ({"messages": [{"role": "x"}]}, "{% if %}", "TemplateSyntaxError"),
        ({"messages": [{"role": "x"}]}, "", "no chat template"),
        ({"messages": "hello"}, "{{ 1 }}", "messages of another form"),
    ],
)
def test_text_and_messages_that_cannot_be_tokenized_are_refused(prompt, template, found, tmp_path):
    """Catches whatever tokenizers and chat templates raise getting through as a traceback."""
    write_tokenizer(tmp_path, template)
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(prompt))
    with pytest.raises(e3.Eagle3RefError, match=f"line 1: found .*{found}"):
        e3.read_prompts(path, tmp_path)


@pytest.mark.parametrize("damage", ["", "{", '{"model": 1}', "[]"])
def test_a_damaged_tokenizer_is_named(damage, tmp_path):
    """Catches the bare Exception that the tokenizers library raises."""
    write_tokenizer(tmp_path, "")
    (tmp_path / "tokenizer.json").write_text(damage)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "hello"}')
    with pytest.raises(e3.Eagle3RefError, match="loading the tokenizer of"):
        e3.read_prompts(path, tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"seed": -1}],
)
def test_sampling_out_of_range_is_refused(settings):
    """Catches settings that fail in the middle of a capture, or draw something else than they say."""
    with pytest.raises(e3.Eagle3RefError, match="sampling settings"):
        e3.Sampling(**settings)


def write_tokenizer(folder: Path, template: str) -> None:
    """Words apart at spaces, two of them known."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hello": 0, "?": 1}, unk_token="?"))
    words.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | ({"chat_template": template} if template else {}))
    )

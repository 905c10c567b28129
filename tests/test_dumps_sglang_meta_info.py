"""Responses of a real SGLang 0.5.23 with hidden states: every row at its token, every damage named."""

from __future__ import annotations

import copy
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_dumps import CONFIG, NORMED, POINTS, SGLANG, error, lines, prompts_of

from eagle3ref.dumps.meta_info import holds_meta_info, read_meta_info
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt

ROUNDING = 2.0  # times the float32 error of the target itself: 0.9 to 1.5 here, 400,000 for a row or a layer off
Json = dict[str, Any]


def kept(folder: Path, made: list[Any], name: str = "responses.jsonl") -> Path:
    """Responses as a user keeps them."""
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in made))
    return folder / name


@pytest.mark.parametrize("name", ["aux", "draft"])
def test_rows_of_a_real_server_stand_at_their_tokens(name: str) -> None:
    """Would catch a row or a layer one off, also where the first chunk or the cached part of a prefill is missing."""
    dump = read_meta_info(SGLANG / name, CONFIG, None)
    assert dump.capture_points == POINTS
    assert dump.engine == "sglang 0.5.23"
    for sequence in dump:
        assert sequence.tokens is not None
        rows = len(sequence.states["aux_0"])
        assert sequence.first_row + rows == len(sequence.tokens) - 1
        for states, point in zip(sequence.states.values(), POINTS, strict=True):
            assert error(states, sequence.tokens, sequence.first_row, point) < ROUNDING
            assert error(states, sequence.tokens, sequence.first_row, point + 1) > 1e5
            assert rows == 1 or error(states[1:], sequence.tokens, sequence.first_row, point) > 1e5
            assert sequence.first_row == 0 or error(states, sequence.tokens, sequence.first_row - 1, point) > 1e5


def test_missing_prefixes_are_where_the_server_left_them() -> None:
    """SGLang keeps the last chunk of a prefill (16 of 21 rows are gone, none was cached), and no cached prefix."""
    first_rows = [sequence.first_row for sequence in read_meta_info(SGLANG / "aux", CONFIG, None)]
    assert first_rows == [0, 16, 20, 0, 0, 0]
    metas = [line["response"]["meta_info"] for line in lines("aux")[:3]]
    assert [meta["cached_tokens"] for meta in metas] == [0, 0, 20]


def test_several_prompts_of_one_request_keep_their_own_ids() -> None:
    """Would catch a list of answers whose prompts are mixed up."""
    asked, answered = (lines("aux")[4][side] for side in ("request", "response"))
    found = [sequence.tokens for sequence in read_meta_info(SGLANG / "aux", CONFIG, None)][-2:]
    for tokens, prompt, response in zip(found, asked["input_ids"], answered, strict=True):
        assert tokens is not None
        assert tokens.tolist() == prompt + response["output_ids"]


@pytest.mark.parametrize("name", ["final", "eagle-flag"])
def test_the_eagle_flag_is_named(name: str) -> None:
    """Would catch the final state taken for a captured one: the width alone does not refuse it."""
    dump = read_meta_info(SGLANG / name, CONFIG, None)
    assert dump.capture_points == ()
    assert "--speculative-algorithm EAGLE" in dump.reason
    (sequence,) = dump
    assert sequence.states == {}
    assert sequence.final is not None
    assert sequence.final_is_normed
    assert sequence.tokens is not None
    assert error(sequence.final, sequence.tokens, 0, NORMED) < ROUNDING
    assert error(sequence.final, sequence.tokens, 0, CONFIG.num_layers) > 1e5


def test_numbers_come_back_in_the_dtype_of_the_server() -> None:
    """Would catch bfloat16 rows stored as wide as float64, or float32 rows rounded to bfloat16."""
    for name, dtype in (("aux-bfloat16", torch.bfloat16), ("aux", torch.float32)):
        sequence = next(iter(read_meta_info(SGLANG / name, CONFIG, None)))
        line = lines(name)[0]["response"]["meta_info"]["hidden_states"]
        assert sequence.states["aux_1"].dtype == dtype
        assert torch.equal(sequence.states["aux_1"][0].double(), torch.tensor(line[0][0][64:128], dtype=torch.float64))


FORMS: dict[str, Callable[[list[Json]], tuple[str, str]]] = {
    "one object": lambda made: ("r.json", json.dumps(made[0])),
    "one object on many lines": lambda made: ("r.json", json.dumps(made[0], indent=1)),
    "a list": lambda made: ("r.json", json.dumps(made)),
    "a list on many lines": lambda made: ("r.json", json.dumps(made, indent=2)),
    "lines": lambda made: ("r.jsonl", "\n".join(map(json.dumps, made)) + "\n\n"),
    "lines in a .json": lambda made: ("r.json", "\n".join(map(json.dumps, made))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_of_file(form: str, packed: bool, tmp_path: Path) -> None:
    """Would catch a form that is read as another one, or a response whose place in the file is lost."""
    made = [line["response"] for line in lines("draft")]
    name, text = FORMS[form](made)
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert holds_meta_info(path)
    assert holds_meta_info(tmp_path)
    number = 1 if "object" in form else 2
    prompts = dict(list(prompts_of("draft").items())[:number])
    whole = read_meta_info(SGLANG / "draft", CONFIG, None)
    for found, wanted in zip(read_meta_info(path, CONFIG, prompts), whole, strict=False):
        assert found.tokens is not None
        assert torch.equal(found.tokens, wanted.tokens)
        assert all(torch.equal(found.states[label], wanted.states[label]) for label in wanted.states)
    assert read_meta_info(path, CONFIG, prompts).ids == tuple(prompts)


def test_prompts_are_found_by_id_or_by_place_and_checked(tmp_path: Path) -> None:
    """Would catch a prompt of another response, and one that is as long but not the one that was answered."""
    made = [line["response"] for line in lines("draft")]
    path = kept(tmp_path, made)
    ids = [response["meta_info"]["id"] for response in made]
    first, second = prompts_of("draft").values()
    by_id = {ids[1]: Prompt(ids[1], second.tokens), "other": Prompt("other", first.tokens)}
    dump = read_meta_info(path, CONFIG, by_id | {ids[0]: Prompt(ids[0], first.tokens)})
    assert dump.ids == tuple(ids)
    assert dump.sequence(ids[1]).prompt_length == 21
    unknown = read_meta_info(path, CONFIG, None).sequence(ids[0])
    assert unknown.tokens is None
    assert unknown.prompt_length == 9
    with pytest.raises(Eagle3RefError, match="a prompt of 9 tokens; expected 21"):
        read_meta_info(path, CONFIG, {"a": second, "b": first}).sequence("a")
    wrong = Prompt("a", first.tokens, torch.zeros(5, dtype=torch.int64))
    with pytest.raises(Eagle3RefError, match="another answer"):
        read_meta_info(path, CONFIG, {"a": wrong, "b": second}).sequence("a")


def test_other_json_beside_the_responses_is_left_alone(tmp_path: Path) -> None:
    """Would catch a file of prompts read as responses without states; two files of responses are both read."""
    first, second = ([line["response"]] for line in lines("draft"))
    kept(tmp_path, first, "a.jsonl")
    kept(tmp_path, second, "b.jsonl")
    kept(tmp_path, [{"id": "p0", "tokens": [1, 2]}], "prompts.jsonl")
    dump = read_meta_info(tmp_path, CONFIG, prompts_of("draft"))
    assert [len(sequence.states["aux_0"]) for sequence in dump] == [13, 9]


def test_layers_are_not_guessed(tmp_path: Path) -> None:
    """Without the server's settings nothing says which layers these are; the default is named, not taken."""
    dump = read_meta_info(kept(tmp_path, lines("aux")), CONFIG, None)
    assert dump.capture_points is None
    assert "2,4,5" in dump.reason
    assert "server_info.json" in dump.reason


@pytest.mark.parametrize(
    ("settings", "points"),
    [
        ({"return_aux_hidden_state_layer_ids": [4, 1, 3]}, (2, 4, 5)),
        ({"return_aux_hidden_state_layer_ids": [0, 2, 6]}, (1, 3, 7)),
        ({}, (2, 4, 5)),
        ({"return_aux_hidden_state_layer_ids": [1, 3]}, None),
        ({"speculative_draft_model_path": "elsewhere"}, None),
        ({"speculative_draft_model_path": None}, None),
        ({"speculative_draft_model_path": None, "enable_return_aux_hidden_states": True}, (2, 4, 5)),
        ({"version": "9.9.9", "return_aux_hidden_state_layer_ids": [0, 2, 6]}, (1, 3, 7)),
    ],
    ids=str,
)
def test_layers_from_the_settings(settings: Json, points: tuple[int, ...] | None, tmp_path: Path) -> None:
    """Would catch ids in the order of the list, ids without SGLang's + 1, or ids that do not fit the states."""
    path = kept(tmp_path, lines("aux"))
    (tmp_path / "server_info.json").write_text(json.dumps({"version": "0.5.23"} | settings))
    assert read_meta_info(path, CONFIG, None).capture_points == points


@pytest.mark.parametrize(
    ("ids", "points"), [([1, 29, 57], (2, 30, 58)), ([2, 30, 58], (2, 30, 58)), ([3, 31, 59], (3, 31, 59))], ids=str
)
def test_layers_of_kimi(ids: list[int], points: tuple[int, ...], tmp_path: Path) -> None:
    """SGLang 0.5.23 adds 1 for Kimi only where the first id is 1: would catch the rule of another target."""
    kimi = replace(CONFIG, model_type="kimi_k25", num_layers=61)
    path = kept(tmp_path, lines("aux"))
    settings = {"version": "0.5.23", "return_aux_hidden_state_layer_ids": ids}
    (tmp_path / "server_info.json").write_text(json.dumps(settings))
    assert read_meta_info(path, kimi, None).capture_points == points


def _states(line: Json) -> list[Any]:
    states: list[Any] = line["response"]["meta_info"]["hidden_states"]
    return states


def _null(line: Json) -> None:
    _states(line)[2][70] = None


def _text(line: Json) -> None:
    _states(line)[2][70] = "0.5"


def _two_rows_lost(line: Json) -> None:
    del _states(line)[2:4]


def _row_too_many(line: Json) -> None:
    _states(line).append(_states(line)[-1])


def _longer_prefill(line: Json) -> None:
    _states(line)[0] += _states(line)[0]


def _narrow_row(line: Json) -> None:
    _states(line)[3] = _states(line)[3][:64]


def _mixed_up(line: Json) -> None:
    _states(line).reverse()


def _one_row(line: Json) -> None:
    line["response"]["meta_info"]["hidden_states"] = _states(line)[1]


def _no_states(line: Json) -> None:
    del line["response"]["meta_info"]["hidden_states"]


def _odd_width(line: Json) -> None:
    line["response"]["meta_info"]["hidden_states"] = [
        [row[:100] for row in part] if isinstance(part[0], list) else part[:100] for part in _states(line)
    ]


def _other_dtype(line: Json) -> None:
    _states(line)[1][3] = 0.1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_text, "hidden states that are no numbers"),
        (_two_rows_lost, "2 rows for positions 9 to 12: 2 are missing"),
        (_row_too_many, "5 rows behind the prompt of 9 tokens; expected 4, for an answer of 5 tokens"),
        (_longer_prefill, "18 rows of the prompt; expected at most its 9 tokens"),
        (_narrow_row, "row 11 64 wide and row 0 192"),
        (_mixed_up, "a block of prefill rows as element 4, behind rows of decoding"),
        (_one_row, "one row, of the last token"),
        (_no_states, "no hidden_states in meta_info"),
        (_odd_width, "states 100 wide; expected a multiple of 64"),
        (_other_dtype, "0.1 at position 9, column 3; expected numbers that float32 has"),
    ],
)
def test_damage_is_named(damage: Callable[[Json], None], message: str, tmp_path: Path) -> None:
    """Would catch damaged rows that are read, or an error that does not say which sequence and where."""
    whole = lines("draft")
    made = [copy.deepcopy(whole[0]), whole[1], whole[0]]
    damage(made[0])
    made[0]["response"]["meta_info"]["id"], made[2]["response"]["meta_info"]["id"] = "bad", "good"
    path = kept(tmp_path, [made[2], made[0]])
    dump = read_meta_info(path, CONFIG, None)
    assert dump.sequence("good").tokens is not None
    with pytest.raises(Eagle3RefError, match="'bad'") as caught:
        dump.sequence("bad")
    assert message in str(caught.value)


def test_null_is_nan_at_its_place(tmp_path: Path) -> None:
    """SGLang's JSON writes NaN and infinity as null: would catch a number made up for it, or a row dropped."""
    made = lines("draft")
    _null(made[0])
    sequence = next(iter(read_meta_info(kept(tmp_path, made), CONFIG, None)))
    assert sequence.states["aux_1"].isnan().nonzero().tolist() == [[10, 6]]
    assert not sequence.states["aux_0"].isnan().any()


def test_rounded_numbers_are_told(tmp_path: Path) -> None:
    """Would catch four decimals that pass for what the server computed."""
    made = lines("draft")
    text = json.dumps(made[0]["response"], default=None)
    rounded = json.loads(text, parse_float=lambda number: round(float(number), 4))
    dump = read_meta_info(kept(tmp_path, [rounded]), CONFIG, None)
    assert any("rounded" in note for note in dump.notes)
    assert not any("rounded" in note for note in read_meta_info(SGLANG / "draft", CONFIG, None).notes)
    assert next(iter(dump)).states["aux_0"].dtype == torch.float32


@pytest.mark.parametrize("cut", [20, 2000, -3])
def test_half_written_line_is_named_and_the_others_are_read(cut: int, tmp_path: Path) -> None:
    """A killed recorder: would catch a file that is refused as a whole, or a response that is left out in silence."""
    path = kept(tmp_path, [line["response"] for line in lines("draft")])
    whole = path.read_bytes()
    end = whole.index(b"\n") + 1
    path.write_bytes(whole[: end + cut] if cut > 0 else whole[:cut])
    dump = read_meta_info(path, CONFIG, prompts_of("draft"))
    assert dump.sequence("p0").tokens is not None
    with pytest.raises(Eagle3RefError, match=r"'p1' .* line 2 is no complete JSON"):
        dump.sequence("p1")


def test_damaged_first_line_does_not_hide_the_others(tmp_path: Path) -> None:
    """Would catch a file that is taken for one JSON on many lines because its first line is none."""
    path = kept(tmp_path, [line["response"] for line in lines("draft")])
    path.write_bytes(b"{" + path.read_bytes())
    dump = read_meta_info(path, CONFIG, prompts_of("draft"))
    assert dump.sequence("p1").tokens is not None
    with pytest.raises(Eagle3RefError, match="line 1 is no complete JSON"):
        dump.sequence("p0")


def test_error_of_the_server_is_told() -> None:
    """What this server answered to return_hidden_states "last"."""
    with pytest.raises(Eagle3RefError, match="invalid type"):
        read_meta_info(SGLANG / "error", CONFIG, None)


def test_half_written_archive_is_refused(tmp_path: Path) -> None:
    """Would catch the traceback of an archive that is cut."""
    shutil.copy(SGLANG / "draft" / "responses.jsonl.gz", tmp_path / "r.jsonl.gz")
    data = (tmp_path / "r.jsonl.gz").read_bytes()
    (tmp_path / "r.jsonl.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(Eagle3RefError, match="cannot be read"):
        read_meta_info(tmp_path, CONFIG, None)

"""Files that a patch left in a real SGLang 0.5.23: every row at its token, rejected drafts left out, damage named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_dumps import CONFIG, NORMED, POINTS, SGLANG, error, prompts_of
from torch import Tensor

from eagle3ref.dumps.dump import DumpedSequence
from eagle3ref.dumps.sglang import holds_sglang_dump, read_sglang_folder
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt

ROUNDING = 2.0  # times the float32 error of the target itself: 0.9 to 1.5 here, 400,000 for a row or a layer off
HOOK = SGLANG / "hook" / "request_0"
PROMPTS = {"request_0": next(iter(prompts_of("hook").values()))}
STATES = ("aux_0", "aux_1", "aux_2", "final")


def forwards(name: str = "hook") -> list[dict[str, Tensor]]:
    """The tensors of each forward by name, in order."""
    folders = sorted((SGLANG / name / "request_0").iterdir())
    return [{file.stem: torch.load(file, weights_only=True) for file in folder.iterdir()} for folder in folders]


def write(folder: Path, tensors: dict[str, object], ending: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensor in tensors.items():
        torch.save(tensor, folder / f"{name}{ending}.pt")


def only(path: Path, prompts: dict[str, Prompt] | None = None) -> DumpedSequence:
    assert holds_sglang_dump(path)
    (sequence,) = read_sglang_folder(path, CONFIG, prompts)
    return sequence


def merged(made: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([tensors[name] for tensors in made]) for name in made[0]}


def states_of(tensors: dict[str, Tensor]) -> dict[str, object]:
    return {name: tensors[name] for name in STATES}


@pytest.mark.parametrize("name", ["hook", "hook-lists", "hook-draft"])
def test_rows_of_a_real_server_stand_at_their_tokens(name: str) -> None:
    """Would catch forwards in another order, a row or a layer off, and rows of rejected drafts."""
    (prompt,) = prompts_of(name).values()
    dump = read_sglang_folder(SGLANG / name, CONFIG, {"request_0": prompt})
    assert dump.capture_points == POINTS
    assert dump.engine == "sglang 0.5.23"
    (sequence,) = dump
    assert sequence.tokens is not None
    assert sequence.final is not None
    assert prompt.answer is not None
    assert sequence.tokens.tolist() == prompt.tokens.tolist() + prompt.answer.tolist()
    assert sequence.prompt_length == len(prompt.tokens)
    assert sequence.first_row == 0
    # A row for each token but the last; a draft may have been accepted up to the end, and then the last has one too.
    assert len(sequence.final) - len(sequence.tokens) in ((-1, 0) if name == "hook-draft" else (-1,))
    for states, point in zip([*sequence.states.values(), sequence.final], [*POINTS, NORMED], strict=True):
        assert error(states, sequence.tokens, 0, point) < ROUNDING
        assert error(states[1:], sequence.tokens, 0, point) > 1e5


def test_rejected_drafts_are_left_out_without_the_answer() -> None:
    """Of the last round nothing says what was accepted but its root; would catch drafts that pass for text."""
    (prompt,) = prompts_of("hook-draft", with_answers=False).values()
    whole = only(SGLANG / "hook-draft", {"request_0": next(iter(prompts_of("hook-draft").values()))})
    assert whole.tokens is not None
    sequence = only(SGLANG / "hook-draft", {"request_0": prompt})
    assert sequence.tokens is not None
    rows = len(sequence.tokens)
    assert torch.equal(sequence.tokens, whole.tokens[:rows])
    assert rows > sequence.prompt_length
    assert sum(len(forward["final"]) for forward in forwards("hook-draft")) > rows
    assert torch.equal(sequence.states["aux_2"], whole.states["aux_2"][:rows])


def _one_folder(folder: Path) -> None:
    write(folder / "request_0", states_of(merged(forwards())))


def _batch_of_one(folder: Path) -> None:
    write(folder / "request_0", {name: tensor[None] for name, tensor in merged(forwards()).items() if name in STATES})


def _packed(folder: Path) -> None:
    whole = merged(forwards())
    packed = torch.cat([whole[f"aux_{i}"] for i in range(3)], dim=-1)
    write(folder / "request_0", {"aux_hidden_states": packed, "final": whole["final"]})


def _list(folder: Path) -> None:
    write(folder, {"request_0": list(states_of(merged(forwards())).values())})


def _nested_list(folder: Path) -> None:
    whole = merged(forwards())
    write(folder, {"request_0": ([whole[f"aux_{i}"] for i in range(3)], whole["final"])})


def _dictionary(folder: Path) -> None:
    write(folder, {"request_0": merged(forwards())})


def _prefill_and_decode(folder: Path) -> None:
    first, *rest = forwards()
    write(folder / "request_0", states_of(merged(rest)), "_decode")
    write(folder / "request_0", states_of(first), "_prefill")


def _rows_of_decoding(folder: Path) -> None:
    first, *rest = forwards()
    write(folder / "request_0" / "prefill", states_of(first))
    for i, forward in enumerate(rest, 9):  # decode_9 before decode_10
        write(folder / "request_0" / f"decode_{i}", {name: rows[0] for name, rows in forward.items() if name in STATES})


def _flat(folder: Path) -> None:
    for i, forward in enumerate(forwards()):
        write(folder, states_of(forward), f"_step{i}")
    for file in list(folder.iterdir()):
        file.rename(folder / f"request_0_{file.name}")


def _with_other_files(folder: Path) -> None:
    _one_folder(folder)
    torch.save(torch.zeros(3), folder / "request_0" / "logits.pt")


LAYOUTS = (
    _one_folder,
    _batch_of_one,
    _packed,
    _list,
    _nested_list,
    _dictionary,
    _prefill_and_decode,
    _rows_of_decoding,
    _flat,
    _with_other_files,
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_rows(layout: Callable[[Path], None], tmp_path: Path) -> None:
    """Would catch a layout whose parts are joined in another order, or a final state taken for a captured one."""
    layout(tmp_path)
    sequence, wanted = only(tmp_path, PROMPTS), only(SGLANG / "hook", PROMPTS)
    assert sequence.id == "request_0"
    assert sequence.prompt_length == wanted.prompt_length
    assert sequence.tokens is not None
    assert wanted.tokens is not None
    assert torch.equal(sequence.tokens, wanted.tokens)
    assert list(sequence.states) == ["aux_0", "aux_1", "aux_2"]
    assert all(torch.equal(sequence.states[label], wanted.states[label]) for label in wanted.states)
    assert sequence.final is not None
    assert wanted.final is not None
    assert torch.equal(sequence.final, wanted.final)


def test_final_state_may_be_left_out(tmp_path: Path) -> None:
    """Would catch the last captured state taken for the final one where files have names."""
    whole = merged(forwards())
    del whole["final"]
    write(tmp_path / "request_0", dict(whole))
    sequence = only(tmp_path, PROMPTS)
    assert list(sequence.states) == ["aux_0", "aux_1", "aux_2"]
    assert sequence.final is None


def test_final_state_alone_is_no_captured_one(tmp_path: Path) -> None:
    """hidden_states.pt as wide as the target: what a server under the EAGLE flag hands over."""
    write(tmp_path / "request_0", {"hidden_states": forwards()[0]["final"]})
    dump = read_sglang_folder(tmp_path, CONFIG, PROMPTS)
    assert dump.capture_points == ()
    assert "EAGLE" in dump.reason


def test_a_cached_prefix_is_missing_where_it_was(tmp_path: Path) -> None:
    """Rows begin behind what the prefix cache had: with positions, with token ids, and from the number of rows."""
    for kept in (("positions", "input_ids"), ("input_ids",), ()):
        folder = tmp_path / f"{len(kept)}" / "request_0"
        for i, forward in enumerate(forwards()):
            names = {*STATES, *kept}
            write(
                folder / f"forward_{i}", {name: rows[5 * (i == 0) :] for name, rows in forward.items() if name in names}
            )
        sequence = only(folder.parent, PROMPTS)
        assert sequence.first_row == 5
        assert sequence.prompt_length == 9
        assert sequence.tokens is not None
        assert error(sequence.states["aux_0"], sequence.tokens, 5, POINTS[0]) < ROUNDING


def test_prompt_ends_where_forwards_of_one_row_begin() -> None:
    """Without prompts: tokens from input_ids, the prompt's length from the forwards."""
    sequence = only(SGLANG / "hook")
    assert sequence.prompt_length == 9
    assert sequence.tokens is not None
    assert PROMPTS["request_0"].answer is not None
    assert sequence.tokens.tolist() == [*PROMPTS["request_0"].tokens, *PROMPTS["request_0"].answer[:-1]]


def test_positions_put_mixed_up_names_in_order(tmp_path: Path) -> None:
    """Would catch names that are trusted although the positions say otherwise."""
    for name, forward in zip("bca", forwards(), strict=True):
        write(tmp_path / "request_0" / f"call_{ord(name)}", forward)
    wanted = only(SGLANG / "hook", PROMPTS)
    assert torch.equal(only(tmp_path, PROMPTS).states["aux_1"], wanted.states["aux_1"])


Change = Callable[[list[dict[str, Any]]], None]


def _swapped(made: list[dict[str, Tensor]]) -> None:
    made[1], made[2] = made[2], made[1]
    for forward in made:
        del forward["positions"]


def _forward_lost(made: list[dict[str, Tensor]]) -> None:
    del made[1]


def _two_requests(made: list[dict[str, Tensor]]) -> None:
    made[1] = {name: torch.cat([tensor, tensor]) for name, tensor in made[1].items()}


def _same_position_twice(made: list[dict[str, Tensor]]) -> None:
    made[2]["positions"] = made[1]["positions"]


def _row_lost(made: list[dict[str, Tensor]]) -> None:
    made[0]["aux_1"] = made[0]["aux_1"][:-1]


def _too_many_rows(made: list[dict[str, Tensor]]) -> None:
    made.insert(0, dict(made[0]))
    for forward in made:
        del forward["positions"], forward["input_ids"]


def _split_repeats_a_row(made: list[dict[str, Any]]) -> None:
    made[1] = {name: torch.cat([made[0][name][-1:], rows]) for name, rows in made[1].items()}
    for forward in made:
        del forward["positions"], forward["input_ids"]


def _other_token(made: list[dict[str, Tensor]]) -> None:
    made[0]["input_ids"][3] += 1


def _forward_of_a_draft(made: list[dict[str, Tensor]]) -> None:
    del made[1]["aux_1"], made[1]["aux_2"]


def _gap_in_the_numbers(made: list[dict[str, Tensor]]) -> None:
    del made[0]["aux_1"]


def _text(made: list[dict[str, Any]]) -> None:
    made[0]["aux_1"] = "lost"


def _cube(made: list[dict[str, Tensor]]) -> None:
    made[0]["aux_1"] = made[0]["aux_1"].repeat(2, 1, 1)


def _integers(made: list[dict[str, Tensor]]) -> None:
    made[0]["aux_1"] = made[0]["aux_1"].long()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_swapped, "token 227 at position 9; expected 225, as given"),
        (_forward_lost, "no rows of positions 9 to 9, behind request_0/forward_0"),
        (_two_requests, "of several requests or of a tree"),
        (_same_position_twice, "position 9 as the first of request_0/forward_1 and of request_0/forward_2"),
        (_row_lost, "8 rows of aux_1, and 9 of the others"),
        (_too_many_rows, "20 rows for 12 tokens"),
        (_split_repeats_a_row, "the same row at positions 8 and 9"),
        (_other_token, "token 181 at position 3; expected 180, as given"),
        (_forward_of_a_draft, "a draft's forwards"),
        (_gap_in_the_numbers, "aux_2 and no aux_1"),
        (_text, "aux_1 of type str"),
        (_cube, "aux_1 of shape [2, 9, 64]"),
        (_integers, "aux_1 in torch.int64"),
    ],
)
def test_damage_is_named(change: Change, message: str, tmp_path: Path) -> None:
    """Would catch damaged forwards that are joined, or an error that does not say what is wrong and where."""
    made = forwards()
    change(made)
    for i, forward in enumerate(made):
        write(tmp_path / "request_0" / f"forward_{i}", dict(forward))
    write(tmp_path / "whole", states_of(merged(forwards())))
    dump = read_sglang_folder(tmp_path, CONFIG, {**PROMPTS, "whole": PROMPTS["request_0"]})
    assert dump.sequence("whole").tokens is not None
    with pytest.raises(Eagle3RefError) as caught:
        dump.sequence("request_0")
    assert message in str(caught.value)
    assert "request_0" in str(caught.value)


@pytest.mark.parametrize("end", [0, 100, -200])
def test_half_written_file_is_named(end: int, tmp_path: Path) -> None:
    """A killed server: would catch the traceback of an archive that is cut, or of an empty file."""
    shutil.copytree(SGLANG / "hook", tmp_path / "dump")
    file = sorted((tmp_path / "dump" / "request_0").rglob("aux_1.pt"))[1]
    file.write_bytes(file.read_bytes()[:end])
    dump = read_sglang_folder(tmp_path / "dump", CONFIG, PROMPTS)
    with pytest.raises(Eagle3RefError, match=str(file)):
        dump.sequence("request_0")


class Hostile:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return print, ("code of a dump was run",)


def test_no_code_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a pickle that is opened with everything allowed."""
    write(tmp_path, {"request_0": Hostile()})
    assert not holds_sglang_dump(tmp_path)
    with pytest.raises(Eagle3RefError, match="tensors and plain containers"):
        read_sglang_folder(tmp_path, CONFIG, PROMPTS)
    assert "was run" not in capsys.readouterr().out


def test_files_of_training_pipelines_are_left_to_their_readers(tmp_path: Path) -> None:
    """Would catch a dictionary of modelopt or SpecForge taken for a server's."""
    whole = merged(forwards())
    write(tmp_path, {"a": {"aux_hidden_states": whole["aux_0"], "input_ids": whole["input_ids"], "loss_mask": None}})
    assert not holds_sglang_dump(tmp_path)
    assert not holds_sglang_dump(tmp_path / "a.pt")

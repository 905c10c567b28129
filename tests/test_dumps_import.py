"""Dumps of training pipelines become the very traces that capture would have made of the same runs."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_layouts import LAST, USUAL, WRITERS, joined, own, specforge, speculators, speculators_joined
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from tiny import VOCAB, draft_folder, target_folder

import eagle3ref as e3
from eagle3ref.dumps import FORMATS, import_dump, read_dump
from eagle3ref.dumps.layout import answer_span


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("dumps") / "target")


@pytest.fixture(scope="module")
def target(folder: Path) -> e3.Target:
    return e3.load_target(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def recorded(target: e3.Target, tmp_path_factory: pytest.TempPathFactory) -> e3.Trace:
    """Every boundary of the target and its final state, over three prompts and its own answers."""
    generator = torch.Generator().manual_seed(5)
    prompts = [e3.Prompt(str(i), torch.randint(VOCAB - 3, (n,), generator=generator)) for i, n in enumerate((6, 3, 9))]
    path = tmp_path_factory.mktemp("dumps") / "recorded"
    points = range(LAST + 1)
    return e3.capture(target, prompts, path, capture_points=points, max_new_tokens=14, final_hidden_state=True)


def prompts_of(recorded: e3.Trace) -> list[e3.Prompt]:
    return [e3.Prompt(f"any-{each.id}", each.tokens[: each.prompt_length]) for each in recorded]


def imported(dump: Path, tmp_path: Path, target: Any, recorded: e3.Trace, **settings: Any) -> tuple[e3.Trace, str]:
    notes: list[str] = []
    settings = {"prompts": prompts_of(recorded), **settings}
    trace = import_dump(dump, tmp_path / "trace", target=target, on_note=notes.append, **settings)
    return trace, "\n".join(notes)


def refusal(call: Any, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(e3.Eagle3RefError) as caught:
        call(*arguments, **settings)
    return str(caught.value)


@pytest.mark.parametrize("name", WRITERS)
def test_import_equals_capture_bit_for_bit(name, folder, recorded, tmp_path):
    """Catches a format taken for another one, rows or layers off by one, states in another order, a norm applied twice
    or not at all, and a wrong end of the prompt."""
    write, format_name, points = WRITERS[name]
    dump = write(tmp_path / "dump", recorded)
    trace, notes = imported(dump, tmp_path, folder, recorded)
    assert f"format {format_name}: 3 sequences" in notes
    assert f"capture points {points}: " in notes
    assert trace.header.capture_points == points
    assert trace.header.dtype == "float32"
    for sequence, expected in zip(trace, recorded, strict=True):
        assert torch.equal(sequence.tokens, expected.tokens)
        assert sequence.prompt_length == expected.prompt_length
        for point in points:
            assert torch.equal(sequence.aux_hidden_states[point], expected.aux_hidden_states[point])
        assert torch.equal(sequence.final_hidden_state, expected.final_hidden_state)
        assert torch.equal(sequence.argmax, expected.argmax)
        torch.testing.assert_close(sequence.logprob_gap, expected.logprob_gap)


@pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
@pytest.mark.parametrize(
    "name",
    ["speculators", *(pytest.param(name, marks=pytest.mark.slow) for name in ("specforge", "modelopt on vLLM"))],
)
def test_replay_counts_the_same(name, folder, target, recorded, tmp_path):
    """Catches anything that a draft would see and the comparison of tensors did not."""
    dump = WRITERS[name][0](tmp_path / "dump", recorded)
    trace, _ = imported(dump, tmp_path, folder, recorded)
    same_points = e3.capture(
        target,
        [e3.Prompt(each.id, each.tokens[: each.prompt_length], each.answer) for each in recorded],
        tmp_path / "captured",
        capture_points=USUAL,
    )
    draft = e3.load_draft(draft_folder(tmp_path / "draft"), target=target, dtype=torch.float32)
    tree = e3.TreeConfig(3, 2, 6)
    expected = e3.replay(same_points, draft, tree)
    assert replace(e3.replay(trace, draft, tree), prompt_ids=expected.prompt_ids) == expected


def test_config_alone_is_enough_and_says_what_it_leaves_open(folder, recorded, tmp_path):
    """Catches a need for weights, and a final state recorded whose norm nobody knows."""
    only_config = tmp_path / "config only"
    only_config.mkdir()
    (only_config / "config.json").write_bytes((folder / "config.json").read_bytes())
    trace, notes = imported(specforge(tmp_path / "a", recorded), tmp_path / "a-trace", only_config, recorded)
    assert trace[0].argmax is None
    assert torch.equal(trace[0].final_hidden_state, recorded[0].final_hidden_state)
    assert "first choices is not known: weights of config only cannot be read" in notes
    trace, notes = imported(speculators(tmp_path / "b", recorded), tmp_path / "b-trace", only_config, recorded)
    assert trace[0].final_hidden_state is None
    assert "the final state is left out: it is before the norm" in notes
    write = WRITERS["modelopt on transformers"][0]
    trace, notes = imported(write(tmp_path / "c", recorded), tmp_path / "c-trace", only_config, recorded)
    assert trace[0].final_hidden_state is None
    assert "only the target's norm weight can tell" in notes


def test_shards_with_the_ends_of_the_target_are_enough(folder, recorded, tmp_path):
    """Catches a need for 594 GB where the embedding, the final norm and the head would do."""
    part = tmp_path / "part"
    part.mkdir()
    shutil.copy(folder / "config.json", part)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    ends = [name for name in index if re.search(r"embed_tokens|lm_head|model\.norm", name)]
    assert len(ends) == 3
    with ExitStack() as files:
        opened = [files.enter_context(safe_open(file, "pt")) for file in sorted(folder.glob("*.safetensors"))]
        held = [(file, set(file.keys())) for file in opened]
        tensors = {name: file.get_tensor(name) for file, names in held for name in ends if name in names}
    save_file(tensors, part / "there.safetensors")
    moved = {name: "there.safetensors" if name in ends else "not-here.safetensors" for name in index}
    (part / "model.safetensors.index.json").write_text(json.dumps({"weight_map": moved}))
    trace, _ = imported(speculators(tmp_path / "dump", recorded), tmp_path, part, recorded)
    assert torch.equal(trace[1].final_hidden_state, recorded[1].final_hidden_state)
    assert torch.equal(trace[1].argmax, recorded[1].argmax)


def test_norm_is_measured_and_a_contradiction_told(folder, recorded, tmp_path):
    """Catches a format's word taken where the target's own norm weight says otherwise."""
    raw = [replace(each, final_hidden_state=each.aux_hidden_states[LAST]) for each in recorded]
    dump = specforge(tmp_path / "raw", raw)
    told = refusal(imported, dump, tmp_path, folder, recorded)
    assert "not that of rows behind this target's norm" in told
    assert "--final-state raw" in told
    trace, notes = imported(dump, tmp_path, folder, recorded, final_state="raw")
    assert torch.equal(trace[1].final_hidden_state, recorded[1].final_hidden_state)
    assert "the target's norm was applied to it (3 of 3 sequences)" in notes

    normed = [
        replace(each, aux_hidden_states=each.aux_hidden_states | {LAST: each.final_hidden_state}) for each in recorded
    ]
    trace, notes = imported(speculators(tmp_path / "normed", normed), tmp_path / "n", folder, recorded)
    assert torch.equal(trace[1].final_hidden_state, recorded[1].final_hidden_state)
    assert "these rows are behind it already (3 of 3 sequences)" in notes
    trace, _ = imported(tmp_path / "normed", tmp_path / "d", folder, recorded, final_state="drop")
    assert trace[1].final_hidden_state is None
    assert trace[1].argmax is None


@pytest.mark.parametrize(
    ("rows", "told"), [(slice(1, None), "lost its first row"), (slice(None, -1), "a row too many")]
)
def test_rows_one_position_off_are_found(rows, told, folder, recorded, tmp_path):
    """Catches a shifted dump that would import as a draft that never agrees."""

    def shift(state: torch.Tensor) -> torch.Tensor:
        blank = state[:1]
        return torch.cat((state[rows], blank) if rows.start else (blank, state[rows]))

    shifted = [
        replace(
            each,
            aux_hidden_states={point: shift(state) for point, state in each.aux_hidden_states.items()},
            final_hidden_state=shift(each.final_hidden_state),
        )
        for each in recorded
    ]
    message = refusal(imported, specforge(tmp_path / "by argmax", shifted), tmp_path, folder, recorded)
    assert "one position off: their first choices" in message
    assert told in message
    embedded = [
        replace(each, aux_hidden_states=each.aux_hidden_states | {2: each.aux_hidden_states[0]}) for each in shifted
    ]
    dump = specforge(tmp_path / "by embedding", embedded)
    message = refusal(imported, dump, tmp_path, folder, recorded, capture_points=(0, 3, 4), final_state="drop")
    assert "one position off: their embeddings" in message
    assert told in message
    message = refusal(imported, dump, tmp_path, folder, recorded, capture_points=(2, 0, 4), final_state="drop")
    assert "another state at capture point 0" in message


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_answers_are_no_case_for_the_shift(length, folder, recorded, tmp_path):
    """Catches a check for shifted rows that fails on, or refuses, answers too short to show one."""
    short = [
        replace(
            each,
            tokens=each.tokens[:end],
            aux_hidden_states=states,
            final_hidden_state=each.final_hidden_state[:end],
            argmax=None,
            logprob_gap=None,
        )
        for each in recorded
        for end in [each.prompt_length + length]
        for states in [{point: state[:end] for point, state in each.aux_hidden_states.items()}]
    ]
    trace, _ = imported(specforge(tmp_path / "dump", short), tmp_path, folder, recorded)
    assert [len(each.answer) for each in trace] == [length] * 3
    assert [each.off_argmax_tokens for each in trace] == [0] * 3


def test_loaded_target_finds_a_mixed_up_order(target, recorded, tmp_path):
    """Catches states joined in descending order, which no file and no shape can tell."""
    turned = [
        replace(
            each,
            aux_hidden_states=each.aux_hidden_states | {2: each.aux_hidden_states[4], 4: each.aux_hidden_states[2]},
        )
        for each in recorded
    ]
    dump = specforge(tmp_path / "turned", turned)
    message = refusal(imported, dump, tmp_path, target, recorded)
    assert "believed to enter layer 2, which is nearest to the one entering 4" in message
    assert "believed to enter layer 4, which is nearest to the one entering 2" in message
    assert not (tmp_path / "trace").exists()
    trace, _ = imported(dump, tmp_path, target, recorded, capture_points=(4, 3, 2))
    for point in USUAL:
        assert torch.equal(trace[2].aux_hidden_states[point], recorded[2].aux_hidden_states[point])
    assert torch.equal(trace[2].argmax, recorded[2].argmax)


def test_capture_points_are_overridden_and_must_fit(folder, recorded, tmp_path):
    """Catches an override that is ignored, silently cut, or put in another order than the states."""
    dump = speculators(tmp_path / "dump", recorded)
    trace, notes = imported(dump, tmp_path, folder, recorded, capture_points=(5, 1, 3))
    assert trace.header.capture_points == (1, 3, 5)
    assert "capture points (5, 1, 3): given" in notes
    assert "the reader would have taken (2, 3, 4)" in notes
    assert torch.equal(trace[0].aux_hidden_states[5], recorded[0].aux_hidden_states[2])
    trace, _ = imported(dump, tmp_path / "4", folder, recorded, capture_points=(2, 3, 4, 7))  # the last slot is a layer
    assert torch.equal(trace[0].aux_hidden_states[7], recorded[0].aux_hidden_states[7])
    assert trace[0].final_hidden_state is None
    for points, told in (((1, 2), "3 states"), ((1, 2, 8), "from 0"), ((2, 2, 3), "a different one")):
        assert told in refusal(imported, dump, tmp_path / "x", folder, recorded, capture_points=points)


def test_layers_that_nobody_knows_are_asked_for(folder, recorded, tmp_path):
    """Catches a belief where there is no reason for one: a number of states that no default has."""
    two = [
        {"token_ids": own(each.tokens), "hidden_states": torch.stack(list(each.aux_hidden_states.values())[:3], 1)}
        for each in recorded
    ]
    (tmp_path / "dump").mkdir()
    for i, fields in enumerate(two):
        save_file(fields, tmp_path / "dump" / f"hs_{i}.safetensors")
    message = refusal(imported, tmp_path / "dump", tmp_path, folder, recorded)
    assert "2 states were dumped, not 3" in message
    assert "--capture-points" in message


def test_states_side_by_side_are_taken_apart(folder, recorded, tmp_path):
    """Catches a tensor [T, A * C] of one's own hook refused, or cut in another order than it was joined."""
    (tmp_path / "dump").mkdir()
    for each in recorded:
        fields = {"tokens": each.tokens, "x": joined(each, (5, 1)), "y": own(each.aux_hidden_states[3])}
        torch.save({**fields, "prompt_length": each.prompt_length}, tmp_path / "dump" / f"{each.id}.pt")
    trace, notes = imported(tmp_path / "dump", tmp_path, folder, recorded, capture_points=(5, 1, 3))
    assert "format named" in notes
    for point in (1, 3, 5):
        assert torch.equal(trace[2].aux_hidden_states[point], recorded[2].aux_hidden_states[point])


def test_speculators_config_names_the_layers(folder, recorded, tmp_path):
    """Catches the ids of data_config.json taken as capture points: they are outputs, so one layer earlier."""
    dump = WRITERS["speculators 0.3"][0](tmp_path / "dump", recorded)
    config = dump / "data_config.json"
    config.write_text(json.dumps({"version": "2.0", "hidden_states": {"layer_ids": [1, 2, 3, 6]}}))
    assert read_dump(dump, target=folder).capture_points == (2, 3, 4)
    config.write_text("{")
    assert "data_config.json" in refusal(read_dump, dump, target=folder)


def test_prompt_ends_where_the_last_answer_begins(folder, recorded, tmp_path):
    """Catches an earlier turn taken for the answer, and template tokens behind it counted as the target's."""
    sequence = recorded[2]
    dump = specforge(tmp_path / "dump", [sequence])
    file = dump / "rows_0-2000" / "data_0.ckpt"
    fields = torch.load(file)
    mask = torch.zeros(len(sequence.tokens), dtype=torch.int64)
    mask[4:7] = 1  # an earlier turn
    mask[12:20] = 1
    torch.save({**fields, "loss_mask": mask}, file)
    notes: list[str] = []
    trace = import_dump(dump, tmp_path / "t", target=folder, on_note=notes.append)
    assert trace[0].prompt_length == 12
    assert torch.equal(trace[0].tokens, sequence.tokens[:20])
    assert torch.equal(trace[0].aux_hidden_states[3], sequence.aux_hidden_states[3][:20])
    assert any("last run of ones" in note for note in notes)
    torch.save({**fields, "loss_mask": torch.ones_like(mask)}, file)  # modelopt's default: it tells nothing
    assert "where the prompt ends" in refusal(import_dump, dump, tmp_path / "u", target=folder)
    other = [e3.Prompt("rows_0-2000/data_0", torch.tensor([1, 2, 3]))]
    assert "do not begin with the prompt" in refusal(import_dump, dump, tmp_path / "u", target=folder, prompts=other)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=12))
def test_answer_is_the_last_run_of_ones(mask):
    """Catches an end off by one, and an edge of the mask taken for one of the run."""
    run = re.search("1+(?=0*$)", "".join(map(str, mask)))
    expected = (None, len(mask)) if run is None else (run.start() or None, run.end())
    assert tuple(answer_span(torch.tensor(mask))) == expected


def test_last_token_without_a_state_is_dropped(folder, recorded, tmp_path):
    """Catches a server's dump refused, or padded, because the token that it sampled last was never run."""
    sequence = recorded[0]
    dump = replace(
        read_dump(speculators(tmp_path / "dump", [sequence]), target=folder),
        load=lambda _: e3.dumps.DumpedSequence(
            "hs_0", torch.cat((sequence.tokens, torch.tensor([9]))), 6, {"a": sequence.aux_hidden_states[3]}
        ),
    )
    trace, notes = imported(dump, tmp_path, folder, recorded, capture_points=(3,))
    assert torch.equal(trace[0].tokens, sequence.tokens)
    assert "never runs it" in notes


def test_formats_are_asked_in_order_and_can_be_forced(folder, recorded, tmp_path):
    """Catches a format forced and ignored, one that does not exist, an empty folder, and a folder of something else."""
    dump = speculators_joined(tmp_path / "dump", recorded)
    assert read_dump(dump, target=folder).format == "speculators-pt"
    assert "a dictionary with input_ids, aux_hidden_states" in refusal(read_dump, dump, format="modelopt")
    assert "'zip'" in refusal(read_dump, dump, format="zip")
    assert "specforge" in refusal(read_dump, dump, format="zip")
    (tmp_path / "empty").mkdir()
    assert "a folder without files" in refusal(read_dump, tmp_path / "empty")
    assert "no file of a known format" in refusal(read_dump, Path(__file__).parent / "golden" / "engines")
    assert "nothing there" in refusal(read_dump, tmp_path / "nowhere")
    (tmp_path / "half.pt").write_bytes(next(dump.glob("*.pt")).read_bytes()[:400])
    assert "half.pt is a file that torch cannot load" in refusal(read_dump, tmp_path / "half.pt")
    assert "a trace" in refusal(read_dump, recorded.path)
    assert all(kind.files for kind in FORMATS.values())


def vllm_recording() -> tuple[Path, Path, list[e3.Prompt]]:
    golden = Path(__file__).parent / "golden"
    dump = golden / "dumps" / "vllm" / "hidden-states"
    with gzip.open(dump / "responses.jsonl.gz", "rt") as file:
        prompts = [torch.tensor(json.loads(line)["request"]["prompt_token_ids"]) for line in file]
    return golden / "engines" / "target", dump, [e3.Prompt(f"hs_{i}", ids) for i, ids in enumerate(prompts)]


def test_files_that_vllm_wrote(tmp_path):
    """Catches a layout that only our own writers have: vLLM 0.32.0 wrote these, on the target of the other recordings.

    Its ids were (5, 2, 8, 4) on 8 layers; the slots are ascending, and 8 is the state before the final norm.
    """
    target, dump, given = vllm_recording()
    trace = import_dump(dump, tmp_path / "trace", target=target, prompts=given)
    assert trace.header.capture_points == (2, 4, 5)
    # The last slot, normed, has the answers as first choices: layers, rows and norm are where they should be.
    assert [sequence.off_argmax_tokens for sequence in trace] == [0] * len(given)


@pytest.mark.slow  # transformers takes seconds to import
def test_states_that_vllm_wrote_are_those_of_capture(tmp_path):
    """Catches states of another layer or position in vLLM's files, by a run of the same target."""
    target, dump, given = vllm_recording()
    trace = import_dump(dump, tmp_path / "trace", target=target, prompts=given)
    loaded = e3.load_target(target, dtype=torch.float32)
    by_run = import_dump(dump, tmp_path / "by run", target=loaded, prompts=given)
    expected = e3.capture(
        loaded,
        [e3.Prompt(each.id, each.tokens[: each.prompt_length], each.answer) for each in trace],
        tmp_path / "captured",
        capture_points=(2, 4, 5),
        final_hidden_state=True,
    )
    for found, own_run in zip(trace, expected, strict=True):
        for point in (2, 4, 5):
            torch.testing.assert_close(
                found.aux_hidden_states[point], own_run.aux_hidden_states[point], atol=1e-5, rtol=1e-5
            )
        torch.testing.assert_close(found.final_hidden_state, own_run.final_hidden_state, atol=1e-4, rtol=1e-4)
        assert torch.equal(found.argmax, own_run.argmax)
        assert torch.equal(by_run.sequence(found.id).argmax, own_run.argmax)


def test_final_states_alone_are_refused_by_their_cause(folder, recorded, tmp_path):
    """Catches the flag EAGLE instead of EAGLE3 reported as a matter of capture points."""
    dump = replace(read_dump(speculators(tmp_path / "dump", recorded)), capture_points=(), reason="under EAGLE")
    assert "under EAGLE" in refusal(import_dump, dump, tmp_path / "t", target=folder, capture_points=(2, 3, 4))

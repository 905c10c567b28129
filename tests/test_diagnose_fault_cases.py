"""The twelve reported cases of ``golden/fault_cases.json``, each with its verdict; one test a case, named by its id."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from blind import CHAIN, NEW_TOKENS, evidence_of, laboratory, served
from engines.drafts import TARGET, write_draft
from engines.plan import OUTPUT_IDS
from faulty_server import log_line
from pair_worlds import World, world
from safetensors.torch import load_file, save_file

import eagle3ref as e3
from eagle3ref.crosscheck import crosscheck
from eagle3ref.diagnose import RIGHT, Diagnosis, diagnose_files, diagnose_with
from eagle3ref.diagnose.likelihood import conditional_rates
from eagle3ref.diagnose.moments import predicted_figures
from eagle3ref.servers import Evidence, Reading, Rounded, infer_rate, read

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "golden" / "fault_cases.json").read_text())}
PROMPTS = 4
EAGLE3 = ("--speculative-algorithm", "EAGLE3")


@cache
def here() -> World:
    return world("llama", PROMPTS, NEW_TOKENS)


def given(case: str) -> dict[str, Any]:
    found: dict[str, Any] = CASES[case]["input"]
    return found


def expected(case: str) -> str:
    return str(CASES[case]["expected_verdict"])


def served_with(*faults: str) -> Diagnosis:
    """The diagnosis of a server with these faults, from its log and request fields."""
    answers = served("llama", PROMPTS, CHAIN, faults)
    return diagnose_with(laboratory("llama", PROMPTS), evidence_of(here(), answers, "request fields"))


def run_of(**figures: Any) -> Evidence:
    return Evidence.gather([Reading(tool="vLLM", format="made up", scope="run", **figures)])


def test_every_case_has_a_test() -> None:
    """Catches a case that was added to the file, or left out here."""
    assert {name[5:9].upper() for name in globals() if name.startswith("test_tc")} == set(CASES)


def test_tc01_exactly_one() -> None:
    """Catches a dead draft that is put down to one cause by its length alone, or not to the flag by the command."""
    case = given("TC01")
    for era, rate in case["log_rate_by_era"].items():
        length, printed = Rounded.printed(f"{case['accept_len']:.2f}"), Rounded.printed(f"{rate:.2f}")
        inferred = infer_rate(length, printed, num_draft_tokens=case["num_draft_tokens"])
        assert inferred.verdict != "none", era
        assert all(one.strict_rate is None or one.strict_rate.low <= 0 for one in inferred.readings)
    line = "Decode batch. #running-req: 1, #token: 99, token usage: 0.01, accept len: 1.00, accept rate: 0.00, "
    line += "cuda graph: True, gen throughput (token/s): 60.0, #queue-req: 0"
    dead = Evidence.gather(read([line] * 3))
    found = diagnose_with(laboratory("llama", PROMPTS), dead)
    assert found.verdict == "tie"
    assert {"wrong_flag", "embed_lm_head", "vocab_map"} <= set(found.causes)
    command = ("--speculative-algorithm", case["algorithm"])
    explanation = e3.explain(here().folder, TARGET, "sglang==0.5.23", command)
    by_command = diagnose_files(explanation, dead)
    assert by_command is not None
    assert by_command.from_files[0].name == "wrong-algorithm"
    assert diagnose_files(explanation, Evidence.gather(read([line]))) is None  # some twenty rounds
    assert diagnose_files(explanation, run_of(rounds=1, accepted_drafts=0)) is None
    assert diagnose_files(explanation, run_of(accept_length=Rounded.printed("1.00"))) is None


def test_tc02_ids_off_by_one() -> None:
    """Catches a loss of a few per cent that request fields do not name, and one that a few rounds claim to."""
    found = served_with("capture-plus-1")
    assert (found.verdict, found.names) == ("cause named", ("capture-plus-1",))
    assert found.causes == ("aux_layer_ids",)
    assert expected("TC02").startswith("aux_layer_ids")
    assert found.ranked[0].equal == PROMPTS
    answers = served("llama", PROMPTS, CHAIN, ("capture-plus-1",))
    short = diagnose_with(laboratory("llama", PROMPTS), Evidence.gather(read([log_line(answers)])))
    assert short.verdict == "cannot tell"
    assert "capture-plus-1" in short.names
    assert "right" in short.names
    assert short.following
    assert short.following[0].requests


@pytest.mark.slow
@pytest.mark.parametrize("ids", [(1, 3, 4), (1, 3, 7)], ids=["inner", "last"])
def test_tc03_input_contracts(ids: tuple[int, ...], tmp_path: Path) -> None:
    """Catches a boundary that equals the number of layers being refused, and norm_before_fc that is not missed."""
    folder = write_draft(ids, "norm_before_fc", tmp_path / "draft")
    target = here().target.target
    draft = e3.load_draft(folder, target=target, dtype=torch.float32)
    assert draft.capture_points == tuple(i + 1 for i in ids)
    assert draft.config.norm_before_fc
    pair = World(here().target, folder, draft, here().prompts, NEW_TOKENS, here().trace)
    for faults, names in (((), "right"), (("norm-before-fc-missing",), "norm-before-fc-missing")):
        answers = [pair.server(CHAIN, faults).answer(prompt, NEW_TOKENS) for prompt in pair.prompts[:3]]
        some = World(pair.target, folder, draft, pair.prompts[:3], NEW_TOKENS, pair.trace)
        found = diagnose_with(pair.laboratory(CHAIN), evidence_of(some, answers, "request fields"))
        assert found.names[0] == names


def test_tc04_missing_head(tmp_path: Path) -> None:
    """Catches a draft without its head that needs a replay to be found, or that cannot be diagnosed at all."""
    folder = write_draft(OUTPUT_IDS, "", tmp_path / "draft")
    tensors = load_file(folder / "model.safetensors")
    del tensors[given("TC04")["missing_tensor"]]
    save_file(tensors, folder / "model.safetensors")
    dead = run_of(rounds=200, accepted_drafts=0)
    found = diagnose_files(e3.explain(folder, TARGET, "sglang==0.5.23", EAGLE3), dead)
    assert found is not None
    assert found.verdict == "cause named"
    assert found.is_wrong
    assert [trap.name for trap in found.from_files] == ["missing-lm-head"]
    assert (found.cost.forwards, found.ranked) == (0, ())
    healthy = run_of(rounds=200, accepted_drafts=300)
    assert diagnose_files(e3.explain(folder, TARGET, "sglang==0.5.23", EAGLE3), healthy) is None
    assert diagnose_files(e3.explain(here().folder, TARGET, "sglang==0.5.23", EAGLE3), dead) is None


def test_tc10_rate_of_another_era() -> None:
    """Catches a rate that is taken for accepted drafts over drafted ones although the root is in it."""
    case = given("TC10")
    found = Evidence.gather(read([case["line"]])).rate(num_draft_tokens=case["num_draft_tokens"])
    assert found is not None
    assert found.verdict != "none"
    for one in found.readings:
        assert one.strict_rate is not None
        assert one.strict_rate.value == pytest.approx(0.547, abs=0.001)
    assert "0.547" in expected("TC10")


def test_tc11_mean_over_requests() -> None:
    """Catches a mean over requests that is held against the mean over rounds, and called a fault."""
    figures = predicted_figures(laboratory("llama", PROMPTS).predict(RIGHT).counts)
    assert abs(figures.mean_length.mean - figures.length.mean) > 0.02
    macro = Rounded.printed(f"{figures.mean_length.mean:.4f}")
    told = Evidence.gather(
        [Reading(tool="SpecForge", format="results", scope="run", average="requests", accept_length=macro)]
    )
    found = diagnose_with(laboratory("llama", PROMPTS), told)
    right = next(candidate for candidate in found.ranked if candidate.name == "right")
    assert right in found.leading
    assert right.p > 0.9
    checked = crosscheck(here().trace, here().draft, told, CHAIN)
    assert checked.verdict != "differs"
    assert "mean over requests" in [one.name for one in checked.comparisons[0].corrections]
    assert expected("TC11").startswith("metric_definition")


def test_tc12_rows_not_refreshed() -> None:
    """Catches draft rows kept after verification that are not told from other losses of that size."""
    found = served_with("own-rows-kept")
    assert found.names == ("own-rows-kept",)
    assert found.causes == (expected("TC12"),)
    right = next(candidate for candidate in found.ranked if candidate.name == "right")
    assert found.ranked[0].acceptance_length < right.acceptance_length


def test_tc14_rotated_states() -> None:
    """Catches rotated states under another name, and 65 rounds that pass for a precise length."""
    found = served_with("states-rotated")
    assert found.names == ("states-rotated",)
    assert found.causes[0] == "quant_rotation"
    assert expected("TC14").startswith("quant_rotation")
    bad, good = given("TC14")["bad"], given("TC14")["good"]
    for case in (bad, good):
        assert 1 + case["accepted"] / case["drafts"] == pytest.approx(case["len"], abs=0.005)
    figures = predicted_figures(laboratory("llama", PROMPTS).predict(RIGHT).counts)
    assert 2 * figures.length.sd(good["drafts"]) > 0.25


def test_tc16_vocabulary_maps() -> None:
    """Catches a broken map that goes under another class."""
    for fault in ("d2t-ignored", "d2t-shuffled", "d2t-absolute"):
        found = served_with(fault)
        assert fault in found.names, fault
        assert expected("TC16") in found.causes


def test_tc16_in_the_files(tmp_path: Path) -> None:
    """Catches a map that is missing, or holds ids instead of offsets, in files that nobody looked into."""
    dead = run_of(rounds=200, accepted_drafts=1)
    for name, edit in (("missing-d2t", None), ("wrong-d2t", here().draft.target_ids)):  # ids, where offsets belong
        folder = write_draft(OUTPUT_IDS, "", tmp_path / name)
        tensors = load_file(folder / "model.safetensors")
        if edit is None:
            del tensors["d2t"]
        else:
            tensors["d2t"] = edit
        save_file(tensors, folder / "model.safetensors")
        found = diagnose_files(e3.explain(folder, TARGET, "sglang==0.5.23", EAGLE3), dead)
        assert found is not None
        assert name in [trap.name for trap in found.from_files]


def test_tc17_joint_and_conditional() -> None:
    """Catches joint rates that are scored as conditional ones, or the other way round."""
    joint = ", ".join(map(str, given("TC17")["joint"]))
    (line,) = read([f"SpecDecoding metrics: Mean acceptance length: 2.48, Per-position acceptance rate: {joint}"])
    assert isinstance(line, Reading)
    conditional = [rate.value for rate in conditional_rates(line.accept_rate_at)]
    told = [float(number) for number in re.findall(r"\.\d{3}", expected("TC17"))]
    assert conditional == pytest.approx(told, abs=0.001)
    figures = predicted_figures(laboratory("llama", PROMPTS).predict(RIGHT).counts)
    ps = []
    for rates in (figures.joint, [one.mean for one in figures.conditional]):
        length = Rounded.exactly(1 + sum(rates))
        said = run_of(rounds=2000, accept_length=length, accept_rate_at=tuple(map(Rounded.exactly, rates)))
        found = diagnose_with(laboratory("llama", PROMPTS), said)
        ps += [candidate.p for candidate in found.ranked if candidate.name == "right"]
    assert ps[0] > 0.9 > 0.5 > ps[1]


def test_tc18_identical_arms() -> None:
    """Catches a difference claimed between two legs of one server that swing by no more than theirs did."""
    for swing in given("TC18")["swing"]:
        legs = [
            Evidence.gather([Reading(tool="vLLM", format="log", scope="run", rounds=300, accepted_drafts=drafts)])
            for drafts in (480, round(480 + 300 * swing))
        ]
        found = diagnose_with(laboratory("llama", PROMPTS), legs[0], against=legs[1])
        assert found.against is not None
        assert not found.against.differs
        assert set(expected("TC18").split()) <= set(re.findall(r"\w+", found.against.sentence.lower()))
        assert "± " in found.against.sentence
    unsized = run_of(accept_length=Rounded.printed("3.00"))
    found = diagnose_with(laboratory("llama", PROMPTS), legs[0], against=unsized)
    assert found.against is not None
    assert (found.against.differs, found.against.half_width) == (False, None)


def test_tc19_another_workload() -> None:
    """Catches text that is easier than the trace's being taken for a better wiring, or for a fault of the draft."""
    case = given("TC19")
    ratio = case["raw"] / case["chat"]
    figures = predicted_figures(laboratory("llama", PROMPTS).predict(RIGHT).counts)
    drafts = min(0.98 * 3, (figures.length.mean - 1) * ratio)
    found = diagnose_with(laboratory("llama", PROMPTS), run_of(rounds=20_000, accepted_drafts=round(20_000 * drafts)))
    assert "above" in [sign.symptom for sign in found.signs]
    assert found.verdict not in ("as it should be", "cause named")
    assert found.runtime[0].name == "easy-text"
    assert expected("TC19").startswith("prompt_template")
    assert "chat template" in found.runtime[0].what

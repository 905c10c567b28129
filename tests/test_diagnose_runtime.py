"""Symptoms, causes in the running server, and what would separate hypotheses; no model is run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import get_args

import numpy as np
import pytest
from simulated_counts import counts_of, simulated

from eagle3ref.diagnose import RUNTIME_CAUSES, SYMPTOMS
from eagle3ref.diagnose.against import hold_against
from eagle3ref.diagnose.hypothesis import Cause
from eagle3ref.diagnose.moments import Moments, predicted_figures
from eagle3ref.diagnose.observation import Figures
from eagle3ref.diagnose.runtime import point_at
from eagle3ref.diagnose.separation import rounds_between
from eagle3ref.diagnose.static import CAUSES_OF_TRAP
from eagle3ref.diagnose.symptoms import measured_signs
from eagle3ref.servers import Evidence, Reading, Rounded

START = datetime(2026, 11, 30, 12)
RIGHT = predicted_figures(counts_of(simulated(40, 20, 5)))


def window(minute: int, length: float, **fields: object) -> Reading:
    line = Reading(tool="SGLang", format="decode log", scope="window", time=START + timedelta(minutes=minute))
    return replace(line, accept_length=Rounded.printed(f"{length:.2f}"), **fields)


def signs_of(*readings: Reading, rates: tuple[float, ...] = ()) -> dict[str, str]:
    length = Rounded.exactly(1 + sum(rates)) if rates else None
    seen = Figures(500, "counted", length, None, tuple(map(Rounded.exactly, rates)), None)
    found = measured_signs(Evidence.gather(readings), [seen] if rates else [], {}, RIGHT)
    return {sign.symptom: sign.shown_by for sign in found}


def test_every_sign_means_something() -> None:
    """Catches a sign that no user can tell and no evidence shows, and a symptom that points nowhere."""
    assert {sign for cause in RUNTIME_CAUSES for sign in cause.signs} == set(SYMPTOMS)
    assert len({cause.name for cause in RUNTIME_CAUSES}) == len(RUNTIME_CAUSES)
    assert {cause for causes in CAUSES_OF_TRAP.values() for cause in causes} <= set(get_args(Cause))


@pytest.mark.parametrize(
    ("signs", "first"),
    [
        (["decays"], "cached-prefix-without-draft-rows"),
        (["decays", "broken-text"], "target-or-verification"),
        (["cured-without-cache"], "cached-prefix-without-draft-rows"),
        (["batched"], "batch-index"),
        (["batched", "dp-attention"], "dp-attention-extend"),
        (["long-prompts"], "draft-range"),
        (["one-long-request"], "length-gate"),
        (["disaggregated"], "draft-cache-in-transfer"),
        (["graphs"], "stale-graph"),
        (["graphs", "dead"], "stale-graph"),
        (["all-or-nothing"], "broken-logits"),
        (["sampling"], "acceptance-rule"),
        (["more-nodes"], "tree-rows"),
        (["later-positions"], "draft-loop-state"),
        (["constant-ratio"], "definition"),
        (["above"], "easy-text"),
    ],
)
def test_symptoms_point_at_their_cause(signs: list[str], first: str) -> None:
    """Catches a symptom table that sends its reader to another experiment first."""
    assert point_at(signs)[0].name == first


def test_no_symptom_points_nowhere() -> None:
    """Catches a cause that is proposed without a reason."""
    assert point_at([]) == ()


def test_decay_is_seen() -> None:
    """Catches a fall over hours that goes unseen, and noise that is taken for one."""
    noise = np.random.default_rng(0).normal(0, 0.05, 60)
    falling = [window(i, 2.8 - 0.01 * i + noise[i]) for i in range(60)]
    steady = [window(i, 2.8 + noise[i]) for i in range(60)]
    assert "decays" in signs_of(*falling)
    assert "decays" not in signs_of(*steady)


def test_graphs_are_seen() -> None:
    """Catches a loss under graphs that goes unseen, and one that has the wrong sign."""
    mixed = [window(i, (2.0 if i % 2 else 2.8) + 0.01 * (i % 3), cuda_graph=bool(i % 2)) for i in range(20)]
    swapped = [replace(one, cuda_graph=not one.cuda_graph) for one in mixed]
    assert "graphs" in signs_of(*mixed)
    assert "graphs" not in signs_of(*swapped)


def test_shapes_are_seen() -> None:
    """Catches a collapse behind the first draft, rounds without a middle, and a dead draft, each where it is not."""
    joint = RIGHT.joint
    assert "later-positions" in signs_of(rates=(joint[0], 0.2 * joint[1], 0.0))
    assert "later-positions" not in signs_of(rates=joint)
    extremes = Reading(
        tool="SGLang", format="meta_info", scope="request", rounds=100, accepted_drafts=120, histogram=(60, 0, 0, 40)
    )
    assert "all-or-nothing" in signs_of(extremes)
    assert "dead" in signs_of(replace(extremes, accepted_drafts=0, histogram=(100, 0, 0, 0)))
    whole = replace(extremes, histogram=(40, 20, 20, 20))
    assert not {"all-or-nothing", "dead"} & set(signs_of(whole))


def test_two_logs_side_by_side() -> None:
    """Catches a difference that is claimed within the noise, or one that is not where the other log is right."""
    low, high = (
        [window(i, length, cuda_graph=graph, rounds=40, accepted_drafts=round(40 * (length - 1))) for i in range(60)]
        for length, graph in ((2.0, True), (2.8, False))
    )
    found = hold_against(Evidence.gather(low), Evidence.gather(high), RIGHT, other_fits_right=True)
    assert found is not None
    assert found.differs
    assert "is the cause" in found.sentence
    assert found.changed == ("CUDA graphs: on here, off there.",)
    same = hold_against(Evidence.gather(low), Evidence.gather(low), RIGHT, other_fits_right=False)
    assert same is not None
    assert not same.differs


def test_rounds_that_separate() -> None:
    """Catches a sample size that does not separate: of that many rounds nineteen in twenty decide, and few fewer."""
    one, other = (Moments(mean, 0.0, mean * (1 - mean), 100.0, 1.0) for mean in (0.5, 0.6))
    rounds = round(rounds_between(one, other))
    random = np.random.default_rng(0)
    middle = (one.mean + other.mean) / 2
    right = [np.mean(random.random((4000, rounds)) < mean, axis=1) for mean in (one.mean, other.mean)]
    assert (right[0] < middle).mean() == pytest.approx(0.95, abs=0.015)
    assert (right[1] > middle).mean() == pytest.approx(0.95, abs=0.015)

"""Is the true cause named, when only what a server says is told? The whole table: ``benchmarks/blind_test.py``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from blind import CHAIN, FAULTS, NEW_TOKENS, evidence_of, laboratory, run_blind, served
from engines.drafts import TARGET
from faulty_server import log_line
from pair_worlds import world

from eagle3ref.crosscheck import crosscheck
from eagle3ref.diagnose import diagnose_with
from eagle3ref.diagnose.diagnosis import IMPROBABLE
from eagle3ref.explain import explain
from eagle3ref.servers import Evidence, Reading, Rounded, read

PROMPTS = 4
QUICK = ("eagle-flag", "capture-third-plus-1", "norm-before-residual-flipped", "own-rows-kept", "one-step-fewer")


@pytest.mark.parametrize("fault", QUICK)
def test_the_fault_is_named(fault: str) -> None:
    """Catches a cause that its own numbers do not lead to: ids, network, rows, tree."""
    here, answers = world("llama", PROMPTS, NEW_TOKENS), served("llama", PROMPTS, CHAIN, (fault,))
    found = diagnose_with(laboratory("llama", PROMPTS), evidence_of(here, answers, "request fields"))
    assert (found.verdict, found.names[0]) == ("cause named", fault)
    assert found.is_wrong
    assert found.ranked[0].equal == found.ranked[0].requests == PROMPTS
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("fault", ["capture-third-plus-1", "own-rows-kept"])
def test_rounds_and_tokens_are_enough(fault: str) -> None:
    """Catches the truth in a tie with wirings that have no request right, where an old server tells rounds only."""
    here, answers = world("llama", 6, NEW_TOKENS), served("llama", 6, CHAIN, (fault,))
    whole = evidence_of(here, answers, "request fields").requests
    old = [replace(one, accepted_drafts=None, proposed_drafts=None, histogram=()) for one in whole]
    found = diagnose_with(laboratory("llama", 6), Evidence.gather(old))
    assert (found.verdict, found.names) == ("cause named", (fault,))
    assert found.ranked[0].equal == found.ranked[0].requests == 6


@pytest.mark.parametrize("length", ["1.00", "1.60", "2.90"])
def test_a_figure_of_unknown_rounds_names_nothing(length: str) -> None:
    """Catches a cause that is named, or a server that is called right, from a length that may be of one round."""
    said = Reading(tool="vLLM", format="made up", scope="run", accept_length=Rounded.printed(length))
    found = diagnose_with(laboratory("llama", PROMPTS), Evidence.gather([said]))
    assert (found.verdict, found.is_wrong) == ("cannot tell", False)
    assert "unknown rounds" in found.seen[0]


def test_one_round_accuses_nobody() -> None:
    """Catches a cause that is named, or a fault that is claimed, from one empty round because the command is wrong."""
    here = world("llama", PROMPTS, NEW_TOKENS)
    explanation = explain(here.folder, TARGET, "sglang==0.5.23", ("--speculative-algorithm", "EAGLE"))
    one = Reading(tool="SGLang", format="made up", scope="run", rounds=1, accepted_drafts=0)
    found = diagnose_with(laboratory("llama", PROMPTS), Evidence.gather([one]), explanation=explanation)
    assert (found.verdict, found.is_wrong) == ("cannot tell", False)
    assert {"eagle-flag", "right"} <= set(found.names)
    assert found.from_files[0].name == "wrong-algorithm"


def test_an_improbable_right_wiring_is_called_wrong() -> None:
    """Catches "nothing shows a fault" where crosscheck says that the same figure differs."""
    here = world("llama", PROMPTS, NEW_TOKENS)
    for drafts, verdict in ((30, "tie"), (45, "cannot tell")):
        evidence = Evidence.gather(
            [Reading(tool="vLLM", format="made up", scope="run", rounds=60, accepted_drafts=drafts)]
        )
        found = diagnose_with(laboratory("llama", PROMPTS), evidence)
        right = next(one for one in found.ranked if one.name == "right")
        assert (found.verdict, max(right.share, right.p) < IMPROBABLE) == (verdict, verdict == "tie")
        assert ("right" in found.names) is (verdict == "cannot tell")
        assert f"a probability of {right.share:.2f}" in found.sentence
        assert crosscheck(here.trace, here.draft, evidence, CHAIN).verdict != "agrees"


def test_what_the_budget_left_behind_is_listed() -> None:
    """Catches a tie with hypotheses that were seen on fewer sequences and do not say so."""
    line = log_line(served("llama", PROMPTS, CHAIN, ("capture-third-plus-1",)))
    here = world("llama", PROMPTS, NEW_TOKENS)
    found = diagnose_with(here.laboratory(CHAIN), Evidence.gather(read([line])), budget=12)
    fewer = {one.name for one in found.leading if one.sequences < PROMPTS}
    assert fewer
    assert set(found.not_carried_through) == fewer
    assert found.to_dict()["not_carried_through"] == list(found.not_carried_through)


def test_a_right_server_is_right() -> None:
    """Catches a fault that is found where there is none, and a weak draft that is blamed on the server."""
    here, answers = world("llama", PROMPTS, NEW_TOKENS), served("llama", PROMPTS, CHAIN, ())
    found = diagnose_with(laboratory("llama", PROMPTS), evidence_of(here, answers, "request fields"))
    assert (found.verdict, found.names[0], found.is_wrong) == ("as it should be", "right", False)
    assert found.runtime == ()


def test_a_log_alone_is_not_overrated() -> None:
    """Catches a cause that is named although a few printed lines cannot tell it, or that is excluded by them."""
    line = log_line(served("llama", PROMPTS, CHAIN, ("capture-third-plus-1",)))
    found = diagnose_with(laboratory("llama", PROMPTS), Evidence.gather(read([line])))
    assert found.verdict == "cannot tell"
    assert "capture-third-plus-1" in found.names
    assert found.following


def test_a_state_of_the_server_fits_no_wiring() -> None:
    """Catches a wiring that is named for rounds which none of them gives: half the requests lose their draft."""
    here = world("llama", PROMPTS, NEW_TOKENS)
    right, dead = (served("llama", PROMPTS, CHAIN, faults) for faults in ((), ("head-random",)))
    mixed = [(dead if i % 2 else right)[i] for i in range(PROMPTS)]
    found = diagnose_with(laboratory("llama", PROMPTS), evidence_of(here, mixed, "request fields"), symptoms=["decays"])
    assert found.verdict == "none fits"
    assert found.runtime[0].name == "cached-prefix-without-draft-rows"
    assert "--disable-radix-cache" in found.runtime[0].experiment


def test_the_table_is_what_the_goal_asks() -> None:
    """Catches results that were committed and do not keep what the documentation says of them."""
    table = json.loads((Path(__file__).parents[1] / "benchmarks" / "results" / "blind_test.json").read_text())
    told = [row for row in table["summary"] if row["told"] == "request fields"]
    chains = [row for row in told if (row["tree"], row["temperature"], row["at_once"]) == ("3/1/4", 0.0, 1)]
    assert {row["pair"] for row in chains} == {"llama", "gqa", "mla"}
    assert all(row["identifiable"] >= 15 for row in chains)
    assert {row["temperature"] for row in told} == {0.0, 0.8}
    assert {row["tree"] for row in told} == {"3/1/4", "4/3/9", "5/4/16"}
    for row in told:
        assert row["in_leading_tie"] >= 0.9 * row["identifiable"]
        assert row["right_server"] == "as it should be"
    for row in table["summary"]:
        assert row["wrongly_named"] == 0
        assert row["right_server"] in ("as it should be", "cannot tell")
        assert row["most_replays"] <= 25


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gqa", "mla"])
def test_nine_in_ten_are_named(kind: str) -> None:
    """Catches what the quick test does not serve, and a budget that is not kept."""
    runs = [run_blind(kind, (fault,), "request fields", num_prompts=6) for fault in FAULTS]
    shown = [run for run in runs if run.shows]
    assert sum(run.found for run in shown) >= 0.9 * len(shown)
    assert all(run.diagnosis.cost.replays <= 25 for run in runs)

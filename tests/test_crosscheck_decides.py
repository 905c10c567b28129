"""Which of several comparisons decides, and how much the strongest needs for it."""

from __future__ import annotations

import numpy as np
import pytest
from made_rounds import drafts_of, evidence, replayed, request, workload

from eagle3ref.crosscheck import compare
from eagle3ref.servers import Reading


def test_a_quoted_value_never_decides_beside_a_servers_own() -> None:
    """Catches a model card that makes a server agree."""
    trace, rounds, counts, given_run = workload(6, 60)
    card = Reading(tool="card", format="table", scope="reference", rounds=10**7, accepted_drafts=0)
    found = compare(trace, rounds, counts, evidence(card, *given_run.readings))
    assert (found.verdict, found.comparisons[-1].verdict) == ("cannot tell", "differs")
    assert compare(trace, rounds, counts, evidence(card)).best.is_quoted


def test_the_strongest_decides_alone() -> None:
    """Catches a vague figure that overrules exact requests, and the contradiction kept quiet."""
    drafts = drafts_of(np.random.default_rng(2), np.full(8, 0.7), 12)
    lengths = [1 + sum(c + 1 for c in row) for row in drafts]
    trace, rounds, counts = replayed(drafts, lengths)
    right = [request(i, row, length) for i, (row, length) in enumerate(zip(drafts, lengths, strict=True))]
    wrong_run = Reading(tool="SGLang", format="bench", scope="run", rounds=10**6, accepted_drafts=0)
    found = compare(trace, rounds, counts, evidence(*right, wrong_run))
    assert (found.verdict, found.best.kind) == ("agrees", "same requests round by round")
    assert [comparison.verdict for comparison in found.comparisons] == ["agrees", "differs"]
    assert "the strongest agrees and decides, a weaker figure differs" in found.remarks[0]


@pytest.mark.parametrize("weaker", ["agrees", "differs"])
def test_a_weak_figure_never_makes_up_for_what_the_strongest_cannot_tell(weaker: str) -> None:
    """Catches unequal integers 0.75 off that "cannot tell", and one figure of a workload that makes "agrees" of it."""
    own = drafts_of(np.random.default_rng(3), np.full(400, 0.7), 30)
    own[0] = [3, 0, 3, 0]
    lengths = [1 + sum(c + 1 for c in row) for row in own]
    trace, rounds, counts = replayed(own, lengths)
    slower = request(0, [3, 0, 1, 1, 0], lengths[0])
    million = round(counts.accepted_drafts.sum() / counts.total_rounds * 10**6) if weaker == "agrees" else 0
    figure = Reading(
        tool="vLLM", format="x", scope="run", rounds=10**6, accepted_drafts=million, other={"completed": 33_000}
    )
    assert compare(trace, rounds, counts, evidence(figure)).verdict == weaker
    found = compare(trace, rounds, counts, evidence(slower, figure))
    assert (found.verdict, found.best.kind) == ("cannot tell", "same requests round by round")
    assert (len(found.best.unequal), found.comparisons[1].verdict) == (1, weaker)
    assert any(f"cannot tell; a weaker figure {weaker}" in remark for remark in found.remarks)


@pytest.mark.parametrize(("num_rounds", "verdict"), [(1, "cannot tell"), (59, "cannot tell"), (60, "agrees")])
def test_equal_integers_agree_from_sixty_rounds_on(num_rounds: int, verdict: str) -> None:
    """Catches one equal request of one round that "agrees": what 3 / rounds leaves open has to be within the margin.

    And an answer that is asked nine times, taken for nine times as many rounds.
    """
    (drafts,) = drafts_of(np.random.default_rng(1), np.full(1, 0.7), 70)
    served = drafts[:num_rounds]  # the record goes on, so that the last c is known
    asked = [request(0, served, 1 + sum(c + 1 for c in served), request_id=f"r{i}") for i in range(9)]
    replay = replayed([drafts], [1 + sum(c + 1 for c in drafts)])
    for requests in (asked[:1], asked):
        found = compare(*replay, evidence(*requests))
        assert (found.verdict, found.best.compared_rounds, found.best.unequal) == (verdict, num_rounds, ())
    if verdict == "cannot tell":
        assert found.best.more.server_rounds == 60
        assert f"{60 - num_rounds} more rounds" in found.best.more.sentence
    assert compare(*replay, evidence(*asked), margin=3.1 / num_rounds).verdict == "agrees"
    assert compare(*replay, evidence(*asked), margin=2.9 / num_rounds).verdict == "cannot tell"

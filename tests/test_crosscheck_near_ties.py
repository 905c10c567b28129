"""The same answers with other rounds: a fault, or near-ties that fall differently in other arithmetic?"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from made_rounds import drafts_of, evidence, replayed, request

from eagle3ref.crosscheck import compare
from eagle3ref.crosscheck.near_ties import near_tie_probability
from eagle3ref.servers import Reading


def world(rng: np.random.Generator, prompts: int, num_rounds: int):
    """A replay, and the server's requests that are equal to it."""
    drafts = drafts_of(rng, np.full(prompts, 0.7), num_rounds)
    lengths = [1 + sum(c + 1 for c in row) for row in drafts]
    served = [request(i, row, length) for i, (row, length) in enumerate(zip(drafts, lengths, strict=True))]
    return replayed(drafts, lengths), served


def moved(served: Reading, rounds: int) -> Reading:
    """The same text in more rounds, or fewer."""
    accepted = (served.accepted_drafts or 0) - rounds
    return replace(
        served, rounds=(served.rounds or 0) + rounds, accepted_drafts=accepted, histogram=(), proposed_drafts=None
    )


def test_other_rounds_differ_whatever_the_mean_is() -> None:
    """Catches a mis-wired server that "cannot tell", or agrees, because seven wrong requests of eight even out."""
    replay, served = world(np.random.default_rng(3), 8, 13)
    wrong = [served[0], *(moved(one, 1 if i % 2 else -1) for i, one in enumerate(served[1:]))]
    found = compare(*replay, evidence(*wrong))
    assert (found.verdict, found.best.kind, len(found.best.unequal)) == ("differs", "same requests round by round", 7)
    assert abs(found.best.difference.estimate) < 0.05
    assert found.sentence.startswith("differs: the rounds are others, 1 of 8 equal in every integer; ")
    assert "of requests like these" in found.sentence
    assert any("more than near-ties explain" in remark and "within the margin" in remark for remark in found.remarks)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))["comparisons"][0]
    low, high = document["as_sample"]["equivalence_interval"]
    assert low < document["difference"]["estimate"] < high


@pytest.mark.parametrize(("share", "verdict"), [(0.0124, "agrees"), (0.03, "differs")])
def test_a_long_run_with_no_more_near_ties_than_were_measured_agrees(share: float, verdict: str) -> None:
    """Catches an allowance of what was measured alone: with rounds enough, any server of another dtype differs."""
    replay, served = world(np.random.default_rng(5), 1000, 20)
    flips = round(share * 20_000)
    flipped = [moved(one, 1 if i % 2 else -1) for i, one in enumerate(served[:flips])] + served[flips:]
    found = compare(*replay, evidence(*flipped))
    assert (found.verdict, len(found.best.unequal)) == (verdict, flips)


def test_rounds_that_are_told_one_by_one_are_counted_at_common_roots() -> None:
    """Catches one long answer of a wrong server that near-ties excuse, because its number of rounds is nearly right.

    And one flip that is taken for many, because all that follows it stands one place further on.
    """
    rng = np.random.default_rng(15)
    (own, other) = drafts_of(rng, np.full(2, 0.7), 400)
    text = 1 + sum(c + 1 for c in own)
    replay = replayed([own], [text])
    ends = np.cumsum(np.array(other) + 1)
    wrong = other[: int(np.searchsorted(ends, text - 1)) + 1]
    told = {"histogram": (), "proposed_drafts": None}
    served = request(0, wrong, text, accepted_by_round=tuple(wrong), **told)
    assert len(wrong) == 399
    found = compare(*replay, evidence(served))
    assert (found.verdict, found.best.num_requests) == ("differs", 1)
    place = next(i for i, c in enumerate(own) if c == 3)
    one_flip = [*own[:place], 1, 1, *own[place + 1 :]]
    found = compare(*replay, evidence(request(0, one_flip, text, accepted_by_round=tuple(one_flip), **told)))
    assert found.best.near_tie_probability == pytest.approx(near_tie_probability(1, 400, 0.02))
    assert found.verdict == "agrees"


def test_a_request_that_is_sent_again_is_no_further_witness() -> None:
    """Catches one near-tie of one prompt, asked fifty times, that is taken for fifty faults."""
    replay, served = world(np.random.default_rng(6), 1, 20)
    repeated = [replace(moved(served[0], 1), request_id=f"again {i}") for i in range(50)]
    found = compare(*replay, evidence(*repeated))
    assert found.best.near_tie_probability == pytest.approx(near_tie_probability(1, 20, 0.02))
    assert found.verdict != "differs"


def test_one_flipped_near_tie_is_no_fault_and_many_are() -> None:
    """Catches a server that is refused for one near-tie in 600 rounds, and one that is excused for 60."""
    rng = np.random.default_rng(0)
    drafts = drafts_of(rng, np.full(30, 0.7), 20)
    lengths = [1 + sum(c + 1 for c in row) for row in drafts]
    trace, rounds, counts = replayed(drafts, lengths)
    served = [request(i, row, length) for i, (row, length) in enumerate(zip(drafts, lengths, strict=True))]
    one = [request(0, [*drafts[0][:-1], max(0, drafts[0][-1] - 1), 0], lengths[0]), *served[1:]]
    found = compare(trace, rounds, counts, evidence(*one))
    assert (found.verdict, len(found.best.unequal)) == ("agrees", 1)
    assert "near-ties" in found.remarks[0]
    many = [replace(r, rounds=r.rounds + 4, proposed_drafts=None) for r in served]
    found = compare(trace, rounds, counts, evidence(*many))
    assert (found.verdict, len(found.best.unequal)) == ("differs", 30)
    assert found.best.difference.estimate == pytest.approx(
        1 + counts.accepted_drafts.sum() / 720 - found.best.reference, abs=0.02
    )


def test_near_tie_probability_is_poissons() -> None:
    """Catches an off-by-one in the tail."""
    import scipy.stats

    for flips, rounds in ((0, 100), (1, 100), (5, 300), (40, 1000)):
        assert near_tie_probability(flips, rounds, 0.01) == pytest.approx(
            scipy.stats.poisson.sf(flips - 1, 0.01 * rounds), abs=1e-12
        )

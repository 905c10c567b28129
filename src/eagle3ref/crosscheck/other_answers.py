"""Requests whose answers are not the recorded ones: paired by prompt, or as draws from one workload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eagle3ref.crosscheck.comparison import Comparison, Correction, completion_corrections
from eagle3ref.crosscheck.matching import Match
from eagle3ref.crosscheck.more_data import more_data
from eagle3ref.crosscheck.predict import LengthForm, PredictedRequest, length_terms, plain_length
from eagle3ref.crosscheck.reference import Reference
from eagle3ref.crosscheck.request_terms import by_prompt, completion_tokens, form_of, server_terms, tells_length
from eagle3ref.servers import Reading
from eagle3ref.statistics import Criterion, independent_difference, paired_difference, variance_of


def same_prompts(matches: Sequence[Match], reference: Reference, criterion: Criterion) -> Comparison | None:
    """Requests whose prompts are recorded, whatever they answered; None if none tells its rounds."""
    place = {request.id: i for i, request in enumerate(reference.predicted)}
    rows = [place[m.sequence_id] for m in matches if m.sequence_id is not None and tells_length(m.request)]
    told = [m.request for m in matches if m.sequence_id is not None and tells_length(m.request)]
    prompts = sorted(set(rows))
    form = form_of(told)
    own = length_terms([reference.predicted[row] for row in prompts], form)
    if not told or not own.denominators.any():
        return None
    server = by_prompt(server_terms(told, form), [prompts.index(row) for row in rows])
    difference = paired_difference(server, own)
    plain = plain_length([reference.predicted[row] for row in prompts], own.value)
    tokens = np.mean([completion_tokens(request) or 0 for request in told])
    recorded = np.mean([reference.predicted[row].completion_tokens for row in rows])
    rounds = int(server.denominators.sum())
    return Comparison(
        kind="same prompts",
        verdict=difference.verdict(*criterion),
        of=f"{len(told)} requests of {len(prompts)} prompts",
        form=str(form),
        server=server.value,
        server_low=server.value,
        server_high=server.value,
        reference=own.value,
        plain_reference=plain,
        difference=difference,
        server_rounds=rounds,
        reference_rounds=int(own.denominators.sum()),
        corrections=_of_form(form, [reference.predicted[row] for row in prompts]),
        assumptions=(
            f"The server's answers ({tokens:.0f} tokens on average) accept as the recorded ones ({recorded:.0f}) do.",
        ),
        num_requests=len(told),
        more=more_data(difference, criterion, rounds, None),
    )


def requests_alone(requests: Sequence[Reading], reference: Reference, criterion: Criterion) -> Comparison | None:
    """Requests that nothing in the trace belongs to, each prompt an independent draw; None if none tells its rounds."""
    told = [request for request in requests if tells_length(request)]
    if not told:
        return None
    form = form_of(told)
    # A request without prompt ids stands for a prompt of its own.
    prompts = {request.prompt_ids or i: None for i, request in enumerate(told)}
    rows = {prompt: row for row, prompt in enumerate(prompts)}
    terms = by_prompt(server_terms(told, form), [rows[request.prompt_ids or i] for i, request in enumerate(told)])
    own = reference.length(form)
    error = variance_of(terms)
    difference = independent_difference(terms.value, error, own.value, (own.variance, own.degrees_of_freedom))
    rounds = int(terms.denominators.sum())
    return Comparison(
        kind="same workload only",
        verdict=difference.verdict(*criterion),
        of=f"{len(told)} requests whose prompts are not in the trace, {len(rows)} different ones",
        form=str(form),
        server=terms.value,
        server_low=terms.value,
        server_high=terms.value,
        reference=own.value,
        plain_reference=reference.plain,
        difference=difference,
        server_rounds=rounds,
        reference_rounds=reference.rounds,
        corrections=_of_form(form, reference.predicted),
        assumptions=("The trace's prompts are drawn from the server's workload.",),
        num_requests=len(told),
        more=more_data(difference, criterion, rounds, (error[0], own.variance)),
    )


def _of_form(form: LengthForm, predicted: Sequence[PredictedRequest]) -> tuple[Correction, ...]:
    if form == LengthForm():
        return ()
    cut, whole = (length_terms(predicted, one).value for one in (LengthForm(cut=True), form))
    plain = plain_length(predicted, cut)
    return completion_corrections(whole - cut, cut - plain)

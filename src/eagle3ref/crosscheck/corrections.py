"""What separates a figure of an engine from the acceptance length of the same rounds, each with its size in tokens."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3ref.crosscheck.comparison import Correction, completion_corrections
from eagle3ref.crosscheck.figures import Figure
from eagle3ref.crosscheck.predict import LengthForm, PredictedRequest, length_terms
from eagle3ref.engines import EngineProfile
from eagle3ref.statistics import mean_over_prompts

WARM_UP_TOKENS = 8  # SGLang's request at its start (0.5.23); its first token is the prefill's


def corrections_of(
    figure: Figure, predicted: Sequence[PredictedRequest], profile: EngineProfile | None
) -> list[Correction]:
    """All that applies, in the order of application: their ``tokens`` add up to the move of the reference."""
    found = [*_of_form(figure.form, predicted, profile)]
    if figure.average == "requests":
        terms = length_terms(predicted, figure.form)
        why = "it is the mean of one length a request (macro), not pooled over rounds (micro)"
        found.append(Correction("mean over requests", mean_over_prompts(terms)[0] - terms.value, why))
    if figure.length_how:
        found.append(Correction("how the server's figure was read", 0.0, figure.length_how))
    if figure.tool == "SGLang" and figure.scope in ("window", "lifetime"):
        found.append(_overlap(predicted))
    if figure.scope == "lifetime":
        found.append(_warm_up(figure, predicted))
    return found


def _of_form(
    form: LengthForm, predicted: Sequence[PredictedRequest], profile: EngineProfile | None
) -> Sequence[Correction]:
    if form == LengthForm():
        return []
    cut = length_terms(predicted, LengthForm(cut=True)).value
    source = "" if profile is None or not form.cut else profile.sources["cuts_last_round_in_log"].where
    prefill = length_terms(predicted, form).value - cut
    both = completion_corrections(prefill, cut - length_terms(predicted).value, source)
    return both if form.kind == "completion_per_round" else both[:1]


def _overlap(predicted: Sequence[PredictedRequest]) -> Correction:
    """Nothing is moved: these rounds draft on behind the text, nearly as well as the others."""
    rounds = sum(request.rounds for request in predicted)
    share = len(predicted) / max(1, rounds + len(predicted))
    why = (
        "with overlap scheduling SGLang's log counts up to one round more of each request, after its end: at most "
        f"{share:.1%} of all if its answers are as long as the recorded ones. They draft on behind the text nearly as "
        "well (23 such rounds of 425 cost 0.02 in a run until stop tokens), so nothing was moved"
    )
    return Correction("overshoot", 0.0, why, source="SGLang 0.5.23, measured: tests/golden/engines/http")


def _warm_up(figure: Figure, predicted: Sequence[PredictedRequest]) -> Correction:
    """The request at the start, and whatever else came before; only the former has a known size."""
    why = "a lifetime figure has the warm-up request and all earlier traffic in it, up to the last log line"
    if figure.rounds is None:
        return Correction("warm-up", 0.0, f"{why}; over how many rounds is not told, so this has no size")
    length, deepest = length_terms(predicted).value, predicted[0].tree.num_steps + 1
    share = min(1.0, (WARM_UP_TOKENS - 1) / figure.rounds)
    # All its rounds may have accepted nothing (as many rounds as tokens), or everything.
    return Correction("warm-up", 0.0, why, below=share * (deepest - length), above=share * (length - 1))

"""The answers of a pass: those that were given, and the target's own where none was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eagle3ref.decode import RoundDone, answer_prompts
from eagle3ref.trace.passes import Pass
from eagle3ref.trace.request import CaptureRequest


def answered_pass(
    request: CaptureRequest, places: range, journal: Path | None, on_round: Callable[[RoundDone], None]
) -> Pass:
    """The pass of ``request.prompts[places]``. Prompt i draws from stream i of the seed, in whatever pass it is.

    Args:
        request: all of the capture.
        places: of the pass.
        journal: a file with which generating goes on after a kill.
        on_round: called after each round of the answers that are generated.
    """
    prompts = request.prompts
    unanswered = [i for i in places if prompts[i].answer is None]
    if not unanswered:
        return Pass(prompts[places.start : places.stop])
    generated = answer_prompts(
        request.target,
        [prompts[i].tokens for i in unanswered],
        max_new_tokens=request.max_new_tokens,
        sampling=request.sampling,
        draft=request.draft,
        tree=request.tree,
        prompt_indices=unanswered,
        journal=journal,
        on_round=on_round,
    )
    answers = dict(zip(unanswered, generated, strict=True))
    return Pass(tuple(replace(prompts[i], answer=answers.get(i, prompts[i].answer)) for i in places))

"""Which recorded answer a server's request belongs to, and how far the two texts are one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3ref.servers import Reading
from eagle3ref.trace import Trace

How = Literal["same answer", "same prompt", "unmatched"]
_TELLING = 8  # output ids that are no common beginning: without prompt ids nothing else says whose they are


@dataclass(frozen=True)
class Match:
    """One request and what the trace has for it.

    Args:
        request: the server's.
        how: ``same answer``: its output ids are the recorded answer, or the beginning of it.
        sequence_id: of the recorded sequence; None when unmatched.
        same_tokens: output ids that agree before the first that does not.
        reason: why it is not the same answer; "" if it is.
    """

    request: Reading
    how: How
    sequence_id: str | None = None
    same_tokens: int = 0
    reason: str = ""


@dataclass(frozen=True)
class _Recorded:
    id: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def match_requests(trace: Trace, requests: Sequence[Reading]) -> tuple[Match, ...]:
    """Each request with the recorded sequence of the same prompt ids, and of several the one with the same answer.

    A request that tells no prompt ids is matched by its id, if that is the id of a sequence; an id that means another
    prompt is then refuted by an answer that begins otherwise. Without such an id it is matched by its answer, if only
    one sequence has that. Server and trace may have several answers to one prompt.
    """
    recorded = [_Recorded(s.id, tuple(s.tokens[: s.prompt_length].tolist()), tuple(s.answer.tolist())) for s in trace]
    by_prompt: dict[tuple[int, ...], list[_Recorded]] = defaultdict(list)
    for sequence in recorded:
        by_prompt[sequence.prompt].append(sequence)
    by_id = {sequence.id: sequence for sequence in recorded}
    return tuple(_match(request, by_prompt, by_id) for request in requests)


def _match(request: Reading, by_prompt: dict[tuple[int, ...], list[_Recorded]], by_id: dict[str, _Recorded]) -> Match:
    if request.prompt_ids is not None:
        candidates = by_prompt.get(request.prompt_ids, [])
        missing = "its prompt is not in the trace"
    else:
        candidates = [by_id[request.request_id]] if request.request_id in by_id else _of_answer(request, by_id.values())
        missing = "it tells no prompt ids, its id is no sequence of the trace, and no single one has its answer"
    if not candidates:
        return Match(request, "unmatched", reason=missing)
    output = request.output_ids
    if output is None:
        return Match(request, "same prompt", candidates[0].id, reason="it tells no output ids")
    best = max(candidates, key=lambda sequence: _common(output, sequence.answer))
    same = _common(output, best.answer)
    if not output:
        return Match(request, "same prompt", best.id, reason="its answer is empty")
    if same == len(output):
        return Match(request, "same answer", best.id, same)
    if request.prompt_ids is None and same == 0:
        return Match(request, "unmatched", reason="its id is a sequence's, and its answer begins otherwise")
    if same == len(best.answer):
        reason = f"the record ends after {same} tokens, and its answer has {len(output)}"
    else:
        reason = f"its answer differs at token {same}: {output[same]}, recorded {best.answer[same]}"
    return Match(request, "same prompt", best.id, same, reason)


def _of_answer(request: Reading, recorded: Iterable[_Recorded]) -> list[_Recorded]:
    """The sequence whose answer begins with the request's; none if several do, or if too short to tell one."""
    output = request.output_ids or ()
    found = [one for one in recorded if len(output) >= _TELLING and one.answer[: len(output)] == output]
    return found if len(found) == 1 else []


def _common(output: tuple[int, ...], answer: tuple[int, ...]) -> int:
    """Tokens that agree from the start."""
    pairs = enumerate(zip(output, answer, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(output), len(answer)))

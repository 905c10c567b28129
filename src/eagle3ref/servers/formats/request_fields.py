"""One request's own figures: SGLang's ``meta_info`` and ``sglext`` under all the names they have had, and their kin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from eagle3ref.servers.formats.fields import count, counts, figure
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import Reading
from eagle3ref.servers.rounded import Rounded

# By meaning, the newest name first. "spec_accepted_tokens" and "spec_draft_tokens" are tokenspeed's.
NAMES: Mapping[str, tuple[str, ...]] = {
    "rounds": ("spec_verify_ct",),
    "accepted_drafts": (
        *("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        "spec_accepted_tokens",
    ),
    "proposed_drafts": (
        *("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        "spec_draft_tokens",
    ),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
    "accept_length": ("spec_accept_length",),
    "accept_rate": ("spec_accept_rate",),
    "completion_tokens": ("completion_tokens",),
    "prompt_tokens": ("prompt_tokens",),
    "cached_tokens": ("cached_tokens",),
}
# vLLM's, of ``metrics.speculative_decoding`` with --per-request-spec-decode-metrics (0.32.0).
_VLLM_NAMES: Mapping[str, str] = {
    "num_spec_steps": "rounds",
    "num_accepted_draft_tokens": "accepted_drafts",
    "num_draft_tokens": "proposed_drafts",
    "num_spec_tokens": "num_steps",
}
_NOT_OTHER = frozenset(name for names in NAMES.values() for name in names) | {"id", "finish_reason", "output_ids"}
# The newest first: vLLM's answers with return_token_ids, a client's own files, SGLang's requests, OpenAI's requests.
_PROMPT_NAMES = ("prompt_token_ids", "prompt_ids", "input_ids", "prompt")
_OUTPUT_NAMES = ("output_ids", "token_ids")
CUT_REMARK = "The text is cut off here: only the fields that are whole were read."
# A field of an object that is cut in the middle.
_FIELD = re.compile(r"""["'](\w+)["']\s*:\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*[,}]""")
_ID = re.compile(r"""["']id["']\s*:\s*["']([^"']+)["']""")


def request_reading(
    answer: Mapping[str, Any],
    *,
    tool: str = "SGLang",
    format: str = "meta_info",
    line: Line | None = None,
    time: datetime | None = None,
    raw: str = "",
    sent_ids: tuple[int, ...] | None = None,
) -> Reading | None:
    """The figures of one answer; None if it holds none of them.

    Args:
        answer: of SGLang's ``/generate``, or of an OpenAI endpoint with ``return_spec_tokens_details``, or its
            ``meta_info`` alone.
        tool: who answered.
        format: how it came.
        line: the line of a file that it stands in.
        time: of the answer, if no line gives it.
        raw: the text, if no line gives it.
        sent_ids: the prompt, from the request beside the answer; what the answer itself says it ran comes first.
    """
    fields = _fields(answer)
    shared = _shared_fields(answer, fields, line, time, raw)
    shared |= _prompt(fields, sent_ids, shared["prompt_tokens"])
    vllm = _inner(fields.get("metrics"), "speculative_decoding")
    if isinstance(vllm, Mapping):
        return _vllm_reading(vllm, shared)
    named = {meaning: _first(fields, names) for meaning, names in NAMES.items()}
    if count(named["rounds"]) is None and figure(named["accept_length"]) is None:
        return None
    integers: dict[str, Any] = {
        meaning: count(named[meaning]) for meaning in ("rounds", "accepted_drafts", "proposed_drafts")
    }
    length = figure(named["accept_length"])
    if length is None and integers["rounds"] and shared["completion_tokens"] and integers["accepted_drafts"] is None:
        length = Rounded.exactly(shared["completion_tokens"] / integers["rounds"])
    return Reading(
        tool="tokenspeed" if "spec_accepted_tokens" in fields else tool,
        format=format,
        accept_length=length,
        length_kind="completion_per_round",
        accept_rate=figure(named["accept_rate"]),
        histogram=counts(named["histogram"]),
        **integers,
        num_draft_tokens=_tree_size(integers["rounds"], integers["proposed_drafts"]),
        other={name: value for name, value in fields.items() if name not in _NOT_OTHER and _is_figure(value)},
        **shared,
    )


def prompt_ids_of(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The token ids of the prompt, under any of the names that requests and answers give them; None if there are none.

    Args:
        fields: of a request, of an answer, or of a line that somebody wrote about both.
    """
    return next((ids for name in _PROMPT_NAMES if (ids := _id_list(fields.get(name)))), None)


def cut_request_reading(line: Line) -> Reading | None:
    """What is left of an answer that is cut in the middle: its whole fields, by name."""
    fields: dict[str, Any] = {name: float(value) for name, value in _FIELD.findall(line.text)}
    identity = _ID.search(line.text)
    if identity is not None:
        fields["id"] = identity[1]
    reading = request_reading({"meta_info": fields}, format="meta_info, cut", line=line)
    return None if reading is None else replace(reading, remarks=(*reading.remarks, CUT_REMARK))


def _shared_fields(
    answer: Mapping[str, Any], fields: Mapping[str, Any], line: Line | None, time: datetime | None, raw: str
) -> dict[str, Any]:
    """What answers of all engines say besides acceptance."""
    tokens = ("completion_tokens", "prompt_tokens", "cached_tokens")
    return {
        "scope": "request",
        "time": time if line is None else line.time,
        "source": "" if line is None else line.source,
        "line": 0 if line is None else line.number,
        "raw": raw if line is None else line.raw,
        **{name: count(_first(fields, NAMES[name])) for name in tokens},
        "request_id": _text(_first(fields, ("id", "rid"))),
        "output_ids": _ids(answer, fields),
        "finish_reason": _finish_reason(fields.get("finish_reason")),
    }


def _vllm_reading(figures: Mapping[str, Any], shared: Mapping[str, Any]) -> Reading:
    integers: dict[str, Any] = {meaning: count(figures.get(name)) for name, meaning in _VLLM_NAMES.items()}
    return Reading(
        tool="vLLM",
        format="metrics.speculative_decoding",
        accept_length=figure(figures.get("mean_acceptance_length")),
        accept_rate=figure(figures.get("draft_acceptance_rate")),
        histogram=counts(figures.get("acceptance_histogram")),
        accepted_by_round=counts(figures.get("per_step_accepted")),
        **integers,
        **shared,
    )


def _fields(answer: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of the answer by name: those of ``meta_info`` or ``sglext``, and the answer's own."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, Sequence) and choices else None
    places = [answer, choice, _inner(answer, "usage"), _inner(choice, "meta_info"), _inner(answer, "meta_info")]
    places += [_inner(_inner(place, "sglext"), "spec_tokens_details") for place in (choice, answer)]
    return {name: value for place in places if isinstance(place, Mapping) for name, value in place.items()}


def _inner(outer: Any, name: str) -> Any:
    return outer.get(name) if isinstance(outer, Mapping) else None


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _tree_size(rounds: int | None, proposed: int | None) -> int | None:
    """Nodes of a round, the root included, where every round verified as many."""
    return proposed // rounds + 1 if rounds and proposed and proposed % rounds == 0 else None


def _prompt(fields: Mapping[str, Any], sent: tuple[int, ...] | None, counted: int | None) -> dict[str, Any]:
    """Ids of the prompt that was run, or none and a remark where the server counts another number of tokens."""
    ids = prompt_ids_of(fields) or sent
    if ids is None or counted is None or counted == len(ids):
        return {"prompt_ids": ids}
    remark = f"The server ran another prompt than was sent: it counts {counted} tokens, not {len(ids)}."
    return {"prompt_ids": None, "remarks": (remark,)}


def _ids(answer: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    listed = (_id_list(answer.get(name, fields.get(name))) for name in _OUTPUT_NAMES)
    return next((ids for ids in listed if ids is not None), None)


def _id_list(value: Any) -> tuple[int, ...] | None:
    """A list of token ids; None for a text, a list of prompts, or nothing."""
    return counts(value) if isinstance(value, list) and len(counts(value)) == len(value) else None


def _finish_reason(value: Any) -> str | None:
    return _text(value.get("type") if isinstance(value, Mapping) else value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float | str) and not (isinstance(value, str) and len(value) > 200)

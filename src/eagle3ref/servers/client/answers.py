"""What one answer is worth: the reading in it, or why it is of no use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.http import Failure
from eagle3ref.servers.client.record import Asked
from eagle3ref.servers.formats.fields import count, counts
from eagle3ref.servers.formats.request_fields import NAMES
from eagle3ref.servers.formats.stream import read_object
from eagle3ref.servers.reading import Reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BROKEN_OFF = ("abort", "error")
_SHOWN = 12  # names of fields in a remark


def unusable(facts: ServerFacts, answer: Mapping[str, Any]) -> Failure | None:
    """Why an answer is none; None if it is one, with ids or with text.

    Args:
        facts: of the server.
        answer: its JSON.
    """
    place = _place(facts, answer)
    wanted = "output_ids or text" if facts.endpoint == "/generate" else "choices with token_ids or text"
    if place is None or (_ids(place, "output_ids", "token_ids") is None and not isinstance(place.get("text"), str)):
        return Failure(f"no {wanted} in the answer; there was {_names(answer)}", again=False, status=200)
    reason, message = _finish(place)
    if reason in _BROKEN_OFF:
        return Failure(f"broken off by the server: {message or reason}", again=True, status=200)
    return None


def live_reading(
    facts: ServerFacts,
    prompt_id: str,
    asked: Asked,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Reading | None:
    """The reading of one answered prompt, named after the prompt; None where there is no answer.

    Args:
        facts: of the server.
        prompt_id: becomes the reading's ``request_id``.
        asked: what was sent and came back.
        tokenizer: makes ids of the text of a server that gives none.
    """
    answer = asked.answer
    place = None if answer is None else _place(facts, answer)
    if answer is None or place is None:
        return None
    reading = _figures(facts, answer, asked.time)
    output_ids, from_text = _output_ids(place, tokenizer)
    prompt_ids, other_prompt = _prompt_ids(asked.prompt_ids, place, reading.prompt_tokens)
    if reading.completion_tokens is None and output_ids is not None:
        reading = replace(reading, completion_tokens=len(output_ids))
    text = {"text": place["text"]} if isinstance(place.get("text"), str) else {}
    return replace(
        reading,
        request_id=prompt_id,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        finish_reason=_finish(place)[0],
        other={**reading.other, **text, "seconds": asked.seconds},
        remarks=(*reading.remarks, *from_text, *other_prompt, *_missing(facts, answer, reading)),
    )


def _figures(facts: ServerFacts, answer: Mapping[str, Any], time: datetime | None) -> Reading:
    """The acceptance in an answer, under any of the names that it has had; its token counts alone if it has none."""
    found = (reading for reading in read_object(answer, time=time) if isinstance(reading, Reading))
    reading = next((reading for reading in found if reading.scope == "request"), None)
    if reading is not None:
        return reading
    counted = _mapping(answer, "usage") or _mapping(answer, "meta_info")
    return Reading(
        tool={"sglang": "SGLang", "vllm": "vLLM", "openai": "OpenAI-compatible server"}[facts.engine],
        format="answer",
        scope="request",
        time=time,
        completion_tokens=count(counted.get("completion_tokens")),
        prompt_tokens=count(counted.get("prompt_tokens")),
        cached_tokens=count(counted.get("cached_tokens")),
    )


def _place(facts: ServerFacts, answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Where ids and text stand: SGLang's answer itself, the first choice of the others'."""
    if facts.endpoint == "/generate":
        return answer if isinstance(answer.get("meta_info"), dict) else None
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _finish(place: Mapping[str, Any]) -> tuple[str | None, str]:
    """Why the answer ended, and the server's words for it."""
    reason = place.get("finish_reason", _mapping(place, "meta_info").get("finish_reason"))
    if isinstance(reason, dict):
        kind = reason.get("type")
        return kind if isinstance(kind, str) else None, str(reason.get("message") or "")
    return (reason if isinstance(reason, str) else None), ""


def _prompt_ids(
    sent: tuple[int, ...], place: Mapping[str, Any], counted: int | None
) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """The ids that the server ran, as far as it says, and a remark where these are not what was sent."""
    ran = _ids(place, "prompt_token_ids")
    if ran is not None and ran != sent:
        return ran, (f"The server ran another prompt than was sent: {len(ran)} tokens, not {len(sent)}, or other ids.",)
    if ran is None and counted is not None and counted != len(sent):
        return None, (f"The server ran another prompt than was sent: it counts {counted} tokens, not {len(sent)}.",)
    return sent, ()


def _output_ids(
    place: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """The ids of an answer, and a remark where they are made of its text."""
    ids, text = _ids(place, "output_ids", "token_ids"), place.get("text")
    if ids is not None or tokenizer is None or not isinstance(text, str):
        return ids, ()
    remark = "The server gave text only: its ids are those of the tokenizer, which may cut it differently."
    return tuple(tokenizer.encode(text, add_special_tokens=False)), (remark,)


def _missing(facts: ServerFacts, answer: Mapping[str, Any], reading: Reading) -> tuple[str, ...]:
    """A remark where a server that speculates should count rounds in its answers and does not."""
    speculates = facts.engine == "sglang" and facts.algorithm is not None
    prefill_only = reading.completion_tokens is not None and reading.completion_tokens <= 1  # had no round
    if not speculates or prefill_only or (reading.rounds is not None and reading.accepted_drafts is not None):
        return ()
    wanted = ", ".join(NAMES["rounds"] + NAMES["accepted_drafts"])
    there = _names(_mapping(answer, "meta_info") or answer)
    return (f"The answer does not count rounds and accepted drafts: looked for {wanted}; there was {there}.",)


def _names(values: Mapping[str, Any]) -> str:
    names = [str(name) for name in values]
    return (", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")) or "nothing"


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _ids(place: Mapping[str, Any], *names: str) -> tuple[int, ...] | None:
    """The first of these lists that is one of token ids."""
    for name in names:
        value = place.get(name)
        if isinstance(value, list) and len(ids := counts(value)) == len(value):
            return ids
    return None

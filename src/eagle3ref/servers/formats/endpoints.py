"""Figures in what servers answer at their endpoints, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import count, counts, figure
from eagle3ref.servers.formats.json_fields import LIFETIME_REMARK, Fields, numbers_of, place
from eagle3ref.servers.formats.request_fields import prompt_ids_of, request_reading
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import Reading
from eagle3ref.servers.rounded import Rounded

# A request and its answer, as clients name them in their files.
_ASKED = ("body", "request", "payload")
_ANSWERED = ("response", "answer", "responses", "answers")


def read_request(value: Fields, line: Line, source: str) -> Statements:
    reading = request_reading(value, line=line)
    return [] if reading is None else [replace(reading, source=source or reading.source)]


def read_exchange(value: Fields, line: Line, source: str) -> Statements:
    """A request beside its answer, as a client keeps them: the prompt stands in one, the figures in the other.

    A request of several prompts has a list of answers.
    """
    answered = next((value[name] for name in _ANSWERED if isinstance(value.get(name), Mapping | list)), None)
    asked: Fields = next((value[name] for name in _ASKED if isinstance(value.get(name), Mapping)), {})
    answers = answered if isinstance(answered, list) else [answered]
    lists = (asked[name] for name in ("input_ids", "prompt") if isinstance(asked.get(name), list))
    batch: Sequence[object] = next(lists, [])
    found: Statements = []
    for index, answer in enumerate(answers):
        if not isinstance(answer, Mapping):
            continue
        own = batch[index] if isinstance(answered, list) and index < len(batch) else None
        sent = prompt_ids_of({"input_ids": own}) or prompt_ids_of(asked) or prompt_ids_of(value)
        reading = request_reading(answer, line=line, sent_ids=sent)
        found += [] if reading is None else [replace(reading, source=source or reading.source)]
    return found


def read_columns(value: Fields, line: Line, source: str) -> Statements:
    """``meta_info`` of many requests with a list for each name, and their ids in ``answers``."""
    columns = value.get("meta_info")
    if not isinstance(columns, Mapping) or not isinstance(columns.get("spec_verify_ct"), list):
        return []
    answers = value.get("answers")
    found: Statements = []
    for index in range(len(columns["spec_verify_ct"])):
        fields = {name: column[index] for name, column in columns.items() if _has(column, index)}
        ids = answers[index] if isinstance(answers, list) and index < len(answers) else None
        reading = request_reading({"meta_info": fields, "output_ids": ids}, line=line)
        found += [] if reading is None else [replace(reading, source=source or reading.source)]
    return found


def read_server_info(value: Fields, line: Line, source: str) -> Statements:
    """SGLang's ``/server_info``: the length in ``internal_states``, one for each data-parallel rank."""
    states = value.get("internal_states")
    if not isinstance(states, Sequence):
        return []
    found: Statements = []
    for rank, state in enumerate(states):
        length = figure(state.get("avg_spec_accept_length")) if isinstance(state, Mapping) else None
        if length is None:
            continue
        names = (source, f"DP{rank}" if len(states) > 1 else "")
        reading = Reading(
            tool="SGLang",
            format="/server_info",
            scope="lifetime",
            **place(line, " ".join(filter(None, names))),
            accept_length=length,
            num_steps=count(value.get("speculative_num_steps")),
            topk=count(value.get("speculative_eagle_topk")),
            num_draft_tokens=count(value.get("speculative_num_draft_tokens")),
            other={name: value[name] for name in ("version", "model_path") if isinstance(value.get(name), str)},
            remarks=(LIFETIME_REMARK,),
        )
        found.append(reading)
    return found


def read_loads(value: Fields, line: Line, source: str) -> Statements:
    """One entry of SGLang's ``/v1/loads?include=spec``."""
    figures = value.get("speculative")
    if not isinstance(figures, Mapping) or "accept_length" not in figures:
        return []
    rank = count(value.get("dp_rank"))
    names = (source if source != "loads" else "", "" if rank is None else f"DP{rank}")
    reading = Reading(
        tool="SGLang",
        format="/v1/loads",
        scope="lifetime",
        **place(line, " ".join(filter(None, names))),
        accept_length=figure(figures["accept_length"]),
        accept_rate=figure(figures.get("accept_rate")),
        running_requests=count(value.get("num_running_reqs")),
        gen_throughput=figure(value.get("gen_throughput")),
        other={} if rank is None else {"dp_rank": rank},
        remarks=("The length is of the server's lifetime, the rate of the last log interval: they need not agree.",),
    )
    return [reading]


def read_vllm_counters(value: Fields, line: Line, source: str) -> Statements:
    """vLLM's counters by their names, as ``LLM.get_metrics()`` or a script keeps them."""
    rounds, accepted = count(value.get("num_drafts")), count(value.get("num_accepted_tokens"))
    if rounds is None or accepted is None:
        return []
    by_depth = counts(value.get("num_accepted_tokens_per_pos"))
    reading = Reading(
        tool="vLLM",
        format="counters",
        scope="run",
        **place(line, source),
        rounds=rounds,
        accepted_drafts=accepted,
        proposed_drafts=count(value.get("num_draft_tokens")),
        accepted_drafts_at=by_depth,
        num_steps=len(by_depth) or None,
    )
    return [reading]


def read_tensorrt_iteration(value: Fields, line: Line, source: str) -> Statements:
    """TensorRT-LLM's iteration statistics: one step of the whole batch."""
    figures = value.get("specDecodingStats")
    if not isinstance(figures, Mapping):
        return []
    reading = Reading(
        tool="TensorRT-LLM",
        format="iteration stats",
        scope="window",
        **place(line, source),
        accept_length=figure(figures.get("acceptanceLength")),
        rounds=count(figures.get("numRequestsWithDraftTokens")),
        accepted_drafts=count(figures.get("numAcceptedTokens")),
        proposed_drafts=count(figures.get("numDraftTokens")),
        running_requests=count(value.get("numActiveRequests")),
        other={"iter": count(value.get("iter")), **numbers_of(figures, "iterLatencyMS", "draftOverhead")},
        remarks=("One iteration: pool (accepted + requests) / requests over many, not their lengths.",),
    )
    return [reading]


def read_llama_cpp(value: Fields, line: Line, source: str) -> Statements:
    """llama.cpp's ``timings``."""
    drafted, accepted = count(value.get("draft_n")), count(value.get("draft_n_accepted"))
    predicted = count(value.get("predicted_n"))
    if drafted is None or accepted is None:
        return []
    reading = Reading(
        tool="llama.cpp",
        format="timings",
        scope="request",
        **place(line, source),
        accept_rate=Rounded.exactly(accepted / drafted) if drafted else None,
        rounds=None if predicted is None else predicted - accepted,
        accepted_drafts=accepted,
        proposed_drafts=drafted,
        completion_tokens=predicted,
        prompt_tokens=count(value.get("prompt_n")),
        gen_throughput=figure(value.get("predicted_per_second")),
        remarks=("The rounds are predicted_n - draft_n_accepted: steps without a draft are in them.",),
    )
    return [reading]


def _has(column: object, index: int) -> bool:
    return isinstance(column, list) and index < len(column)

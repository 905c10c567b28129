"""SGLang's responses with ``meta_info["hidden_states"]``: JSON of one or of many, or JSONL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import refuse
from eagle3ref.dumps.responses import Response, json_files, read_responses, speaks_of_states
from eagle3ref.dumps.sglang_layers import believed_layers, num_states, split_packed
from eagle3ref.dumps.state_rows import StateRows, as_written, exact_dtype, state_rows
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt

_NOTES = (
    "the last token of an answer was never run, and has no row",
    "SGLang 0.5.23 returns only the last chunk of a chunked prefill, and no row of a cached prefix",
)
_ROUNDED = "the numbers were rounded on the way: no float type has them; they are read as float32"


def holds_meta_info(path: Path) -> bool:
    """Whether a JSON file, or one right inside a folder, has responses with hidden states."""
    return any(speaks_of_states(file) for file in json_files(path))


def read_meta_info(path: Path, target: TargetConfig | None, prompts: Mapping[str, Prompt] | None) -> Dump:
    """Responses of ``/generate``, or what ``sglang.Engine.generate`` returned, as they came.

    A response does not repeat its prompt. The ids come from ``prompts``, by the response's id or else in their order,
    or from the request where lines are ``{"request": ..., "response": ...}``.

    Source: SGLang 0.5.23, srt/managers/scheduler_components/batch_result_processor.py and output_streamer.py.

    Args:
        path: a file (``.json``, ``.jsonl``, packed with gzip or not) or a folder of them.
        target: for its width, and for SGLang's rule of layers.
        prompts: by id.

    Raises:
        Eagle3RefError: no response with hidden states.
    """
    files = json_files(path) if path.is_dir() else [path]
    # Prompts may lie beside the responses.
    speaking = [file for file in files if speaks_of_states(file)] or files
    responses = [response for file in speaking for response in read_responses(file)]
    if not responses:
        refuse(path, "no response", "what SGLang's /generate returned", "Check the path.")
    by_id = _by_id(responses, prompts or {})
    first = _first_rows(by_id)
    exact = exact_dtype(first.values)
    dtype = exact or torch.float32
    folder = path if path.is_dir() else path.parent
    believed = believed_layers(folder, num_states(first.values.shape[1], target, f"reading {path}"), target)

    def load(name: str) -> DumpedSequence:
        response, prompt = by_id[name]
        rows = _rows(name, response)
        return _sequence(name, response, prompt, rows, dtype if exact else None, target)

    notes = _NOTES if exact else (*_NOTES, _ROUNDED)
    return Dump(path, "sglang-meta-info", tuple(by_id), load, *believed[:2], notes, believed.engine)


def _by_id(responses: list[Response], prompts: Mapping[str, Prompt]) -> dict[str, tuple[Response, Prompt | None]]:
    """Each response with its prompt: that of its own id, or the one at its place if there are as many."""
    own = [_own_id(response) for response in responses]
    if len(set(own)) < len(own) or "" in own:
        own = [str(i) for i in range(1, len(responses) + 1)]
    if prompts and len(prompts) == len(responses) and not all(name in prompts for name in own):
        own = list(prompts)
    return {name: (response, prompts.get(name)) for name, response in zip(own, responses, strict=True)}


def _own_id(response: Response) -> str:
    name = response.meta.get("id", response.request.get("rid"))
    return name if isinstance(name, str) else ""


def _first_rows(by_id: dict[str, tuple[Response, Prompt | None]]) -> StateRows:
    """Of the first response that has any; the error of the first if none has."""
    error: Eagle3RefError | None = None
    for name, (response, _) in by_id.items():
        try:
            return _rows(name, response)
        except Eagle3RefError as found:
            error = error or found
    assert error is not None  # there is a response
    raise error


def _doing(name: str, response: Response) -> str:
    return f"reading the response {name!r} in {response.file}"


def _rows(name: str, response: Response) -> StateRows:
    doing, expected = _doing(name, response), "a response with hidden states"
    if response.damage:
        _refuse(doing, response.damage, expected, "Record that request again, or remove the line.")
    states = response.hidden_states()
    if not isinstance(states, list) or not states:
        error = response.fields.get("error")
        found = "no hidden_states in meta_info" if error is None else f"the error {error!r}"
        action = "Ask with return_hidden_states true, of a server with --enable-return-hidden-states."
        _refuse(doing, found, expected, action)
    if not isinstance(states[0], list):
        action = "Ask /generate with return_hidden_states true; OpenAI's endpoints return one row only."
        _refuse(doing, "one row, of the last token", "a row for every token", action)
    return state_rows(states, doing)


def _sequence(
    name: str,
    response: Response,
    prompt: Prompt | None,
    rows: StateRows,
    dtype: torch.dtype | None,
    target: TargetConfig | None,
) -> DumpedSequence:
    """Rows of the prompt end with its last token; each further one belongs to an answer token, the last left out."""
    doing = _doing(name, response)
    prompt_ids, answer = _ids(doing, response, prompt)
    prompt_length = response.meta.get("prompt_tokens") if prompt_ids is None else len(prompt_ids)
    num_answer = response.meta.get("completion_tokens") if answer is None else len(answer)
    if type(prompt_length) is not int or type(num_answer) is not int:
        expected = "prompt_tokens and completion_tokens in meta_info"
        _refuse(doing, "no lengths of prompt and answer", expected, "Keep responses as they came.")
    _check_rows(doing, rows, prompt_length, num_answer)
    first_row = prompt_length - rows.num_prompt
    values = rows.values.float() if dtype is None else as_written(rows.values, dtype, doing, first_row)
    states, final = split_packed(values, target, doing)
    tokens = None if prompt_ids is None or answer is None else torch.cat([prompt_ids, answer])
    return DumpedSequence(name, tokens, prompt_length, states, first_row, final, None if final is None else True)


def _ids(doing: str, response: Response, prompt: Prompt | None) -> tuple[Tensor | None, Tensor | None]:
    """Ids of prompt and answer, as far as they are known."""
    asked = _id_tensor(response.request.get("input_ids"))
    prompt_ids = asked if prompt is None else prompt.tokens
    stated = response.meta.get("prompt_tokens")
    if prompt_ids is not None and type(stated) is int and stated != len(prompt_ids):
        expected = f"{len(prompt_ids)}, the length of the prompt given for it"
        action = "Give the prompts of these responses, by their ids or in their order."
        _refuse(doing, f"a prompt of {stated} tokens", expected, action)
    answer = _id_tensor(response.fields.get("output_ids"))
    if prompt is None or prompt.answer is None:
        return prompt_ids, answer
    if answer is not None and not torch.equal(answer, prompt.answer):
        action = "Give the prompts of these responses, by their ids or in their order."
        _refuse(doing, "another answer than the one given with its prompt", "the same answer", action)
    return prompt_ids, prompt.answer


def _id_tensor(value: Any) -> Tensor | None:
    are_ids = isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
    return torch.tensor(value, dtype=torch.int64) if are_ids else None


def _check_rows(doing: str, rows: StateRows, prompt_length: int, num_answer: int) -> None:
    """The prompt has no more rows than tokens, and the answer one for each token but the last."""
    action = "Record it again, without a draft if one ran: SGLang's older releases leave rows out then."
    if rows.num_prompt > prompt_length:
        _refuse(doing, f"{rows.num_prompt} rows of the prompt", f"at most its {prompt_length} tokens", action)
    decoded, wanted = len(rows.values) - rows.num_prompt, max(num_answer - 1, 0)
    if decoded < wanted:
        where = f"positions {prompt_length} to {prompt_length + wanted - 1}"
        found = f"{decoded} rows for {where}: {wanted - decoded} are missing, and which cannot be told"
        _refuse(doing, found, f"{wanted}, one for each token of the answer but the last", action)
    if decoded > wanted:
        found = f"{decoded} rows behind the prompt of {prompt_length} tokens"
        _refuse(doing, found, f"{wanted}, for an answer of {num_answer} tokens", action)


def _refuse(doing: str, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(doing, found=found, expected=expected, action=action)

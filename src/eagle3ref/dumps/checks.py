"""Whether a dumped sequence is whole, and whether its rows stand at the tokens that they claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import DumpedSequence
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt, RecordedSequence

_EMBEDDED_ROWS = 64  # rows that are held against the embedding
_CLOSE = 0.01  # relative error of a row that was rounded on the way
_SIGMAS = 3  # one answer of ten tokens, all of them one place off, is enough


def refuse_sequence(sequence_id: str, found: str, expected: str, action: str = "Dump that sequence again.") -> NoReturn:
    """Raise the error of a sequence that cannot be used."""
    raise Eagle3RefError(f"checking sequence {sequence_id!r}", found=found, expected=expected, action=action)


def separated(dumped: DumpedSequence, target: TargetConfig) -> DumpedSequence:
    """The sequence with states that lie side by side in one tensor [R, k * C] taken apart, as ``label[0]``, … ."""
    states: dict[str, Tensor] = {}
    for label, state in dumped.states.items():
        number, rest = divmod(state.shape[-1], target.hidden_size)
        if number < 2 or rest:
            states[label] = state
        else:
            parts = state.split(target.hidden_size, dim=1)
            states |= {f"{label}[{i}]": part for i, part in enumerate(parts)}
    return replace(dumped, states=states)


def whole(dumped: DumpedSequence) -> tuple[DumpedSequence, bool]:
    """The sequence with one row for each token, and whether its last token had to go.

    A server does not run the last token that it samples, so that one has no state.

    Raises:
        Eagle3RefError: no tokens, or rows that are missing otherwise.
    """
    if dumped.tokens is None:
        action = "Give --prompts with tokens and answer_tokens, or dump with token ids."
        refuse_sequence(dumped.id, "no token ids in the dump", "the tokens that the states belong to", action)
    num_tokens, rows = len(dumped.tokens), {label: len(state) for label, state in dumped.states.items()}
    if dumped.final is not None:
        rows["the final state"] = len(dumped.final)
    if not dumped.states:
        refuse_sequence(dumped.id, "no hidden state", "one for each capture point")
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{number} rows of {label}" for label, number in rows.items())
        refuse_sequence(dumped.id, found, "as many rows of each")
    number = next(iter(rows.values()))
    end = dumped.first_row + number
    if dumped.first_row:
        cause = "A cached prefix or a chunked prefill leaves rows out: turn off both (--disable-radix-cache, "
        action = cause + "--chunked-prefill-size -1, --no-enable-prefix-caching) and dump again."
        found = f"rows of positions {dumped.first_row} to {end - 1} only, of {num_tokens} tokens"
        refuse_sequence(dumped.id, found, "rows from position 0 on", action)
    if end not in (num_tokens, num_tokens - 1):
        found = f"{number} rows for {num_tokens} tokens"
        refuse_sequence(dumped.id, found, "one row for each token; only the last one may be without")
    return replace(dumped, tokens=dumped.tokens[:end]), end < num_tokens


def prompt_length(dumped: DumpedSequence, tokens: Tensor, prompts: PromptsByPrefix) -> int:
    """How many tokens are the prompt: as the prompts say where they are given, else as the dump does.

    Raises:
        Eagle3RefError: nobody says, or the tokens do not begin with the prompt of that id.
    """
    length = prompts.length_of(dumped.id, tokens)
    if length is None:
        length = dumped.prompt_length
    if length is None:
        refuse_sequence(
            dumped.id,
            "nothing that says where the prompt ends",
            "a loss mask with zeros in front, or a prompt that the tokens begin with",
            "Give --prompts: JSONL with the prompts as tokens, text or messages.",
        )
    if not 1 <= length < len(tokens):
        found = f"a prompt of {length} of {len(tokens)} tokens"
        action = "Dump prompt and answer together, in one sequence (vLLM: include_output_tokens), or leave it out."
        refuse_sequence(dumped.id, found, "at least one prompt token and one answer token", action)
    return length


class PromptsByPrefix:
    """Prompts to be found by id, and failing that by the tokens that a sequence begins with."""

    def __init__(self, prompts: Mapping[str, Prompt] | None) -> None:
        self._by_id = dict(prompts or {})
        self._tokens = {tuple(prompt.tokens.tolist()) for prompt in self._by_id.values()}
        self._lengths = sorted({len(tokens) for tokens in self._tokens}, reverse=True)

    def with_tokens(self, dumped: DumpedSequence) -> DumpedSequence:
        """The sequence with the tokens of the prompt of its id and its answer, if the dump holds none."""
        prompt = self._by_id.get(dumped.id)
        if dumped.tokens is not None or prompt is None or prompt.answer is None:
            return dumped
        return replace(dumped, tokens=torch.cat((prompt.tokens, prompt.answer)))

    def length_of(self, sequence_id: str, tokens: Tensor) -> int | None:
        """Of the prompt of that id, else of the longest prompt that the tokens begin with; None if there is none.

        Raises:
            Eagle3RefError: the prompt of that id is another one.
        """
        prompt = self._by_id.get(sequence_id)
        if prompt is not None and not torch.equal(tokens[: len(prompt.tokens)], prompt.tokens):
            found = "tokens that do not begin with the prompt of that id"
            action = "Check that prompts and dump belong together; ids are file names without their ending."
            refuse_sequence(sequence_id, found, "the same prompt", action)
        if prompt is not None:
            return len(prompt.tokens)
        ids = tuple(tokens.tolist())
        return next((length for length in self._lengths if ids[:length] in self._tokens), None)


def check_embedding(sequence_id: str, state: Tensor, tokens: Tensor, embedding: Tensor) -> None:
    """A state that is believed to be the embedding output must be: row by row, at its own token.

    Raises:
        Eagle3RefError: it is not, or it is that of the token before or behind.
    """
    rows = state[:_EMBEDDED_ROWS]
    found = {shift: _share_embedded(rows, tokens, embedding, shift) for shift in (0, 1, -1)}
    best = max(found, key=lambda shift: found[shift])
    if found[0] == 1:
        return
    if found[best] == 1:
        _refuse_shift(sequence_id, best, "embeddings")
    action = "Run eagle3ref align on the dump and the target: it tells where each state came from."
    refuse_sequence(sequence_id, "another state at capture point 0", "the embeddings of the tokens", action)


def check_argmax(sequence: RecordedSequence, argmax: Tensor) -> None:
    """The target's first choices must not fit the tokens one place off better than the next tokens.

    Of the rows of the answer where only one of the two fits, more than half should fit in place; beyond three standard
    deviations the other way is no accident. Prompts are left out: nobody chose their tokens by argmax.

    Raises:
        Eagle3RefError: they do.
    """
    for shift in (1, -1):
        inner = torch.arange(len(sequence.tokens))[sequence.prompt_length : -2]
        in_place, shifted = (argmax[inner] == sequence.tokens[inner + 1 + by] for by in (0, shift))
        only_shifted, only_in_place = int((shifted & ~in_place).sum()), int((in_place & ~shifted).sum())
        if only_shifted - only_in_place > _SIGMAS * (only_shifted + only_in_place) ** 0.5:
            _refuse_shift(sequence.id, shift, "first choices")


def check_values(sequence_id: str, target: TargetConfig, states: Mapping[str, Tensor], tokens: Tensor) -> None:
    """Width, vocabulary and finite values, named by the dump's own labels.

    Raises:
        Eagle3RefError: one of them is wrong.
    """
    outside = ((tokens < 0) | (tokens >= target.vocab_size)).nonzero().flatten()
    if len(outside):
        found = f"token id {int(tokens[outside[0]])} at position {int(outside[0])}"
        action = "Check that dump and target belong together; image placeholders have no embedding."
        refuse_sequence(sequence_id, found, f"ids 0 to {target.vocab_size - 1} of {target.name}", action)
    for label, state in states.items():
        if state.shape[1] != target.hidden_size:
            found = f"{label} {state.shape[1]} wide"
            action = "Check that dump and target belong together."
            refuse_sequence(sequence_id, found, f"hidden_size {target.hidden_size} of {target.name}", action)
        bad = (~torch.isfinite(state).all(1)).nonzero().flatten()
        if len(bad):
            found = f"NaN or infinity in {label}, first at position {int(bad[0])} ({len(bad)} rows)"
            refuse_sequence(sequence_id, found, "finite numbers")


def _share_embedded(rows: Tensor, tokens: Tensor, embedding: Tensor, shift: int) -> float:
    positions = torch.arange(max(0, -shift), min(len(rows), len(tokens) - max(0, shift)))
    wanted = embedding[tokens[positions + shift].to(embedding.device)].cpu().double()
    error = (rows[positions].double() - wanted).norm(dim=1)
    return float((error <= _CLOSE * wanted.norm(dim=1)).double().mean())


def _refuse_shift(sequence_id: str, shift: int, what: str) -> NoReturn:
    side = "behind" if shift > 0 else "before"
    refuse_sequence(
        sequence_id,
        f"rows that are one position off: their {what} are those of the token {side}",
        "row i at token i",
        f"The dump has {'lost its first row' if shift > 0 else 'a row too many in front'}: dump it again.",
    )

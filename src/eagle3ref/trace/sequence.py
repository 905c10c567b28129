"""One recorded sequence: what the target read, wrote and computed, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.header import TraceHeader


@dataclass(frozen=True, eq=False)
class RecordedSequence:
    """A prompt, the target's continuation and the target's hidden states at every token.

    Args:
        id: any non-empty text, unique in its trace.
        tokens: int64 [T], prompt and output.
        prompt_length: how many of them are the prompt; at least one, and at least one is not.
        aux_hidden_states: capture point -> [T, C], row ``i`` belongs to token ``i``.
        argmax: int64 [T], the target's first choice *after* position ``i``, to be held against token ``i + 1``.
        topk_ids: int64 [T, k], the target's k best tokens after position ``i``.
        topk_logprobs: float32 [T, k], their log-probabilities in natural logarithm.
        final_hidden_state: [T, C] after the final norm; ``target.logits`` turns it into logits.
        logprob_gap: float32 [T], log p(argmax) - log p(token ``i + 1``) in natural logarithm, at temperature 1; 0 where
            the token is the argmax, and in the last row, which no token follows.

    Raises:
        Eagle3RefError: shapes or dtypes that do not fit together, an empty prompt, or no generated token.
    """

    id: str
    tokens: Tensor
    prompt_length: int
    aux_hidden_states: dict[int, Tensor]
    argmax: Tensor | None = None
    topk_ids: Tensor | None = None
    topk_logprobs: Tensor | None = None
    final_hidden_state: Tensor | None = None
    logprob_gap: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.id or not is_unicode(self.id):
            self._refuse("that id", "some text that UTF-8 can hold", "Give every sequence an id.")
        self._check_shape("tokens", self.tokens, (None,), torch.int64)
        if not 1 <= self.prompt_length < len(self.tokens):
            self._refuse(
                f"prompt_length {self.prompt_length} of {len(self.tokens)} tokens",
                "at least one prompt token and at least one generated token",
                "Leave this sequence out: there is nothing to predict in it.",
            )
        rows = len(self.tokens)
        self._check_shape("argmax", self.argmax, (rows,), torch.int64)
        self._check_shape("logprob_gap", self.logprob_gap, (rows,), torch.float32)
        self._check_shape("topk_ids", self.topk_ids, (rows, None), torch.int64)
        self._check_shape("topk_logprobs", self.topk_logprobs, (rows, None), torch.float32)
        for name, states in self._states().items():
            self._check_shape(name, states, (rows, None), None)
        ids, logprobs = self.topk_ids, self.topk_logprobs
        if (None if ids is None else ids.shape) != (None if logprobs is None else logprobs.shape):
            self._refuse(
                f"topk_ids {_shape(ids)} and topk_logprobs {_shape(logprobs)}",
                "both of one shape, or neither",
                "Record both, or leave both out.",
            )

    @property
    def answer(self) -> Tensor:
        """int64 [T - prompt_length], the generated tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def off_argmax_tokens(self) -> int | None:
        """Generated tokens that are not the target's first choice; None when that was not recorded."""
        if self.argmax is None:
            return None
        return int((self.argmax[self.prompt_length - 1 : -1] != self.answer).sum())

    @property
    def off_argmax_gaps(self) -> Tensor | None:
        """float32, ``logprob_gap`` of the generated tokens that are not the first choice; None if not recorded."""
        if self.argmax is None or self.logprob_gap is None:
            return None
        before_answer = slice(self.prompt_length - 1, -1)
        return self.logprob_gap[before_answer][self.argmax[before_answer] != self.answer]

    def check_against(self, header: TraceHeader) -> None:
        """Refuse a sequence that the header does not describe.

        Raises:
            Eagle3RefError: other capture points, another width or dtype, or a token id outside the vocabulary.
        """
        self._check_capture_points(header)
        width = header.target.hidden_size
        for name, states in self._states().items():
            if states.shape[1] != width:
                self._refuse(
                    f"{name} {states.shape[1]} wide",
                    f"hidden_size {width} of {header.target.name}, one tensor for each capture point",
                    "Split concatenated states by capture point, or correct hidden_size in the header.",
                )
            if states.dtype != header.torch_dtype:
                self._refuse(
                    f"{name} in {states.dtype}", f"{header.dtype}, as the header says", "Convert, or record anew."
                )
        for name, ids in (("tokens", self.tokens), ("argmax", self.argmax), ("topk_ids", self.topk_ids)):
            if ids is not None and ids.numel():
                self._check_vocabulary(name, ids, header.target.vocab_size)

    def check_finite(self) -> None:
        """Refuse hidden states or log-probabilities that hold NaN, hidden states that hold infinity, negative gaps.

        Reads every byte of the sequence, so it is a call of its own; make it before the states are used.

        Raises:
            Eagle3RefError: naming the sequence, the capture point and the first bad position.
        """
        bad = {name: ~torch.isfinite(states).all(dim=1) for name, states in self._states().items()}
        if self.topk_logprobs is not None:
            bad["topk_logprobs"] = torch.isnan(self.topk_logprobs).any(dim=1)
        if self.logprob_gap is not None:
            bad["logprob_gap"] = ~((self.logprob_gap >= 0) & torch.isfinite(self.logprob_gap))
        for name, rows in bad.items():
            if rows.any():
                self._refuse(
                    f"NaN or infinity in {name}, first at position {int(rows.nonzero()[0])} ({int(rows.sum())} rows)",
                    "finite numbers",
                    "Record the sequence again; if it comes back, the target overflows in this dtype at that layer.",
                )

    def _states(self) -> dict[str, Tensor]:
        states = {f"aux_hidden_states[{point}]": tensor for point, tensor in self.aux_hidden_states.items()}
        if self.final_hidden_state is not None:
            states["final_hidden_state"] = self.final_hidden_state
        return states

    def _check_shape(
        self, name: str, tensor: Tensor | None, shape: tuple[int | None, ...], dtype: torch.dtype | None
    ) -> None:
        """None in ``shape`` is any size; None for ``dtype`` is any float."""
        if tensor is None:
            return
        fits = len(tensor.shape) == len(shape) and all(
            want in (None, size) for size, want in zip(tensor.shape, shape, strict=True)
        )
        if not fits or (tensor.dtype != dtype if dtype else not tensor.is_floating_point()):
            letters = ", ".join("any" if size is None else str(size) for size in shape)
            self._refuse(
                f"{name} {_shape(tensor)}",
                f"{dtype or 'a float dtype'} [{letters}], one row for each token",
                "Record one row for every position, the last one included.",
            )

    def _check_capture_points(self, header: TraceHeader) -> None:
        found, expected = sorted(self.aux_hidden_states), list(header.capture_points)
        if found == expected:
            return
        count, width = len(expected), header.target.hidden_size
        action = "Record the capture points of the header, or write another trace with another header."
        widths = {point: states.shape[1] for point, states in self.aux_hidden_states.items()}
        if list(widths.values()) == [width]:
            action = (
                f"One state as wide as hidden_size is what a server records under `--speculative-algorithm EAGLE`: "
                f"use EAGLE3, which gives {count} x {width} = {count * width}."
            )
        self._refuse(
            f"capture points {found}, {' + '.join(map(str, widths.values())) or 0} wide",
            f"capture points {expected}, {count} x {width} = {count * width} wide",
            action,
        )

    def _check_vocabulary(self, name: str, ids: Tensor, vocab_size: int) -> None:
        outside = (ids < 0) | (ids >= vocab_size)
        if outside.any():
            place = outside.nonzero()[0].tolist()
            self._refuse(
                f"id {int(ids[tuple(place)])} in {name} at position {place[0]}",
                f"ids from 0 to {vocab_size - 1} (vocab_size {vocab_size})",
                "Check that the tokenizer and the target belong together.",
            )

    def _refuse(self, found: str, expected: str, action: str) -> NoReturn:
        raise Eagle3RefError(f"checking sequence {self.id!r}", found=found, expected=expected, action=action)


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text; half a surrogate pair, which JSON can spell, it cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"

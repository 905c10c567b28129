"""Prompts from a JSONL file: token ids, text, or chat messages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.sequence import is_unicode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KINDS = ("tokens", "text", "messages")
_TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer.model")


@dataclass(frozen=True)
class Prompt:
    """What the target is given.

    Args:
        id: unique in its file.
        tokens: int64 [T], not empty.
        answer: int64, the target's own answer when it is known already; None to generate one.
    """

    id: str
    tokens: Tensor
    answer: Tensor | None = None


def read_prompts(path: str | Path, target_folder: str | Path | None) -> tuple[list[Prompt], str | None]:
    """Read a JSONL file: one object a line with ``tokens``, ``text`` or ``messages``.

    ``id`` (default: the line number) and ``answer_tokens`` are optional. Text and messages go through the target
    folder's own tokenizer and chat template; no code of the folder is run. Token ids need no folder.

    Returns:
        The prompts, and the sha256 of the tokenizer's vocabulary file; None when every prompt came as token ids.

    Raises:
        Eagle3RefError: an unreadable file or line, an empty prompt, a repeated id, or text and no folder with a
            tokenizer.
    """
    file = Path(path)
    lines = _lines(file)
    needs_tokenizer = any("tokens" not in fields for _, fields in lines)
    tokenizer = load_tokenizer(_with_tokenizer(file, target_folder)) if needs_tokenizer else None
    prompts = [_prompt(file, number, fields, tokenizer) for number, fields in lines]
    seen: set[str] = set()
    for prompt, (number, _) in zip(prompts, lines, strict=True):
        if prompt.id in seen:
            _refuse(file, number, f"id {prompt.id!r} for the second time", "a different id on every line")
        seen.add(prompt.id)
    return prompts, tokenizer_sha256(_with_tokenizer(file, target_folder)) if needs_tokenizer else None


def _with_tokenizer(file: Path, target_folder: str | Path | None) -> str | Path:
    if target_folder is None:
        raise Eagle3RefError(
            f"reading prompts from {file}",
            found="text or messages, and no target",
            expected="the target's folder, whose tokenizer and chat template turn text into tokens",
            action="Give --target, or prompts of token ids.",
        )
    return target_folder


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder.

    Raises:
        Eagle3RefError: none there that transformers can load without running the folder's code.
    """
    try:
        # transformers takes seconds to import: prompts of token ids do not wait for it.
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # noqa: BLE001 - damaged tokenizer files raise whatever they provoke, Exception itself too
        raise Eagle3RefError(
            f"loading the tokenizer of {folder}",
            found=_first_line(error),
            expected="a tokenizer.json that transformers can load without remote code",
            action='Give the prompts as token ids: {"tokens": [...]} on each line.',
        ) from error
    return tokenizer


def tokenizer_sha256(folder: str | Path) -> str | None:
    """sha256 of the vocabulary file of a checkpoint folder; None when it has none."""
    for name in _TOKENIZER_FILES:
        path = Path(folder) / name
        if path.exists():
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return None


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise Eagle3RefError(
            f"reading prompts from {path}",
            found=getattr(error, "strerror", None) or str(error),
            expected="a JSONL file in UTF-8",
            action="Check the path, or convert the file.",
        ) from error
    lines = []
    # Not splitlines: JSON strings may hold U+2028 and others that it takes for ends of lines.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            _refuse(path, number, f"no JSON ({error})", "one JSON object on each line")
        if not isinstance(fields, dict) or sum(kind in fields for kind in _KINDS) != 1:
            _refuse(path, number, f"{line[:80]}", "an object with exactly one of tokens, text, messages")
        lines.append((number, fields))
    if not lines:
        _refuse(path, 1, "no prompt", "at least one line")
    return lines


def _prompt(path: Path, number: int, fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> Prompt:
    known = {*_KINDS, "id", "answer_tokens"}
    if unknown := sorted(fields.keys() - known):
        _refuse(path, number, f"key {unknown[0]!r}", f"only {', '.join(sorted(known))}")
    ids = _tokens(path, number, fields, tokenizer)
    if not ids:
        _refuse(path, number, "an empty prompt", "at least one token")
    answer = fields.get("answer_tokens")
    if answer is not None and not (_are_ids(answer) and answer):
        _refuse(path, number, "answer_tokens that are no ids", "a list of at least one token id")
    return Prompt(
        id=_id(path, number, fields.get("id", number)),
        tokens=torch.tensor(ids),
        answer=None if answer is None else torch.tensor(answer),
    )


def _id(path: Path, number: int, value: Any) -> str:
    if _is_int(value):
        return str(value)
    if not isinstance(value, str) or not value or not is_unicode(value):
        _refuse(path, number, f"id {value!r}", "an integer, or some text that UTF-8 can hold")
    return value


def _tokens(path: Path, number: int, fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    if "tokens" in fields:
        if not _are_ids(fields["tokens"]):
            _refuse(path, number, "tokens that are no ids", "a list of non-negative integers")
        return list(fields["tokens"])
    assert tokenizer is not None  # loaded for every file that holds text
    text = fields["text"] if "text" in fields else _rendered(path, number, fields["messages"], tokenizer)
    if not isinstance(text, str) or not is_unicode(text):
        found = "text with half a surrogate pair" if isinstance(text, str) else f"text of type {type(text).__name__}"
        _refuse(path, number, found, "a string that UTF-8 can hold")
    return list(tokenizer.encode(text, add_special_tokens=False))


def _rendered(path: Path, number: int, messages: Any, tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        _refuse(path, number, "messages, but the target has no chat template", "a chat template in the target folder")
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        _refuse(path, number, "messages of another form", '[{"role": "user", "content": "..."}, ...]')
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # noqa: BLE001 - a template is a program, and refuses roles in any way it likes
        _refuse(path, number, f"messages that the chat template fails on ({_first_line(error)})", "others")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(_is_int(item) and 0 <= item < 2**63 for item in value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _refuse(path: Path, number: int, found: str, expected: str) -> NoReturn:
    raise Eagle3RefError(
        f"reading prompts from {path}, line {number}",
        found=found,
        expected=expected,
        action="Correct that line; nothing was recorded.",
    )

"""The nano pair's text: the code of the running interpreter's standard library, with some modules held out.

Comments and docstrings are left out: code alone is more predictable, and four million parameters are few.
"""

from __future__ import annotations

import ast
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

VOCAB_SIZE = 1024
PAD, EOS, USER, ASSISTANT, END_OF_TURN = "[PAD]", "[EOS]", "<|im_user|>", "<|im_assistant|>", "<|im_end|>"
SPECIAL_TOKENS = [PAD, EOS, USER, ASSISTANT, END_OF_TURN]
# Tests, other people's code, data.
_SKIPPED = {"test", "tests", "site-packages", "dist-packages", "__pycache__", "lib2to3", "pydoc_data", "encodings"}
_HELD_OUT_SHARE = 16
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def is_held_out(name: str) -> bool:
    """Whether a module (its path below the standard library) is kept from training: one in sixteen, by checksum."""
    return zlib.crc32(name.encode()) % _HELD_OUT_SHARE == 0


def sources() -> Iterator[tuple[str, str]]:
    """(path below the standard library, code) of every module worth reading, in sorted order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if _SKIPPED.isdisjoint(Path(name).parts):
            yield name, _code_of(path.read_text(encoding="utf-8"))


def _code_of(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree) + "\n"


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with ``VOCAB_SIZE`` entries; the special tokens come last, as in Kimi's vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def token_stream(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """int64 [T]: all texts, each closed by ``[EOS]``."""
    end = tokenizer.token_to_id(EOS)
    encodings = tokenizer.encode_batch(texts)
    return torch.cat([torch.tensor([*encoding.ids, end]) for encoding in encodings])


def random_windows(stream: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """int64 [batch, length], cut from random places of a token stream."""
    starts = torch.randint(len(stream) - length, (batch, 1), generator=generator)
    return stream[starts + torch.arange(length)]

"""Makes the nano pair from nothing: ``python -m eagle3ref.nano.train [FOLDER]``.

Tokenizer, target, the target's answers, both drafts, held-out prompts, and ``training.json`` with what it took and
what came out. Everything is seeded; on two cores it takes less than 90 minutes.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from eagle3ref import nano
from eagle3ref.nano import corpus
from eagle3ref.nano.answers import training_sequences
from eagle3ref.nano.export import save_draft, save_target
from eagle3ref.nano.train_draft import (
    DRAFT_VOCAB_SIZE,
    frequent_tokens,
    new_draft,
    train_draft,
    training_time_test,
)
from eagle3ref.nano.train_target import CONTEXT, train_target
from eagle3ref.target import KimiK25Target, Target

SEED = 0
TARGET_STEPS = 2500
NUM_ANSWERS = 3072
DRAFT_STEPS = 1800
NUM_PROMPTS = 48
# The nano target completes code, it is no chat model: messages are joined as they are.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_EVERY = 50  # steps between two lines of the log


def main(
    folder: Path, *, target_steps: int = TARGET_STEPS, answers: int = NUM_ANSWERS, draft_steps: int = DRAFT_STEPS
) -> None:
    """Make everything and write it to ``folder``."""
    torch.set_num_threads(1)  # one order of summation on every machine; the second core trains the second draft
    log = StageLog("corpus")
    texts = list(corpus.sources())
    train = [text for name, text in texts if not corpus.is_held_out(name)]
    held_out = [(name, text) for name, text in texts if corpus.is_held_out(name)]
    tokenizer = corpus.train_tokenizer(train)
    stream = corpus.token_stream(tokenizer, train)
    corpus_results = log.close(train_tokens=len(stream), train_modules=len(train), held_out_modules=len(held_out))

    log = StageLog("target")
    target = train_target(stream, target_steps, SEED, log.report)
    ids = {"bos": corpus.EOS, "eos": corpus.EOS, "pad": corpus.PAD}
    special_ids = {name: tokenizer.get_vocab()[token] for name, token in ids.items()}
    save_target(target, folder / "target", special_ids=special_ids)
    _save_tokenizer(tokenizer, folder / "target")
    _save_prompts(folder / "prompts.jsonl", tokenizer, held_out)
    loaded = KimiK25Target.from_folder(folder / "target", dtype=torch.float32)
    held_out_stream = corpus.token_stream(tokenizer, [text for _, text in held_out])
    target_results = log.close(steps=target_steps, held_out_loss=held_out_loss(loaded, held_out_stream))

    log = StageLog("answers")
    sequences = training_sequences(loaded, stream, answers, SEED)
    target_ids = frequent_tokens([sequences.flatten()], DRAFT_VOCAB_SIZE, corpus.VOCAB_SIZE)
    coverage = float(torch.isin(sequences, target_ids).float().mean())
    answer_results = log.close(sequences=len(sequences), draft_vocabulary_coverage=coverage)

    with ProcessPoolExecutor(max_workers=2, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {
            name: pool.submit(_make_draft, kind, folder, name, sequences, target_ids, draft_steps)
            for kind, name in (("gqa", "draft"), ("mla", "draft_mla"))
        }
        draft_results = {name: job.result() for name, job in jobs.items()}
    results = {"corpus": corpus_results, "target": target_results, "answers": answer_results, **draft_results}
    (folder / "training.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _make_draft(
    kind: str, folder: Path, name: str, sequences: Tensor, target_ids: Tensor, steps: int
) -> dict[str, Any]:
    """Train one draft in a process of its own; the last sequences are kept for its score."""
    torch.set_num_threads(1)
    log = StageLog(name)
    target = KimiK25Target.from_folder(folder / "target", dtype=torch.float32)
    draft = new_draft(kind, target, target_ids, SEED)
    kept = len(sequences) // 32
    train_draft(draft, target, sequences[:-kept], steps, SEED, log.report)
    save_draft(draft, folder / name, kind=kind)
    with torch.no_grad():
        losses, agreement = training_time_test(draft, target, sequences[-kept:])
    return log.close(steps=steps, losses=[float(loss) for loss in losses], top1_agreement=agreement)


@torch.no_grad()
def held_out_loss(target: Target, stream: Tensor) -> float:
    """Nats per token of text that no training step saw."""
    windows = stream[: len(stream) // CONTEXT * CONTEXT].view(-1, CONTEXT)[::4]
    total = 0.0
    for window in windows.split(16):
        logits = target.logits(target.forward(window[:, :-1]).final_hidden_state)
        total += functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="sum").item()
    return total / (len(windows) * (CONTEXT - 1))


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": corpus.EOS,
        "pad_token": corpus.PAD,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE, encoding="utf-8")


def _save_prompts(path: Path, tokenizer: Tokenizer, held_out: Sequence[tuple[str, str]]) -> None:
    """Prompts of 32 to 95 tokens from spread-out places of the held-out modules, as token ids."""
    encoded = [(name, tokenizer.encode(text).ids) for name, text in held_out]
    long_enough = [(name, ids) for name, ids in encoded if len(ids) > 400]
    generator = torch.Generator().manual_seed(SEED)
    lines = []
    for i in range(NUM_PROMPTS):
        name, ids = long_enough[i % len(long_enough)]
        length = 32 + int(torch.randint(64, (), generator=generator))
        start = int(torch.randint(len(ids) - length, (), generator=generator))
        lines.append(json.dumps({"id": f"{name}:{start}", "tokens": ids[start : start + length]}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class StageLog:
    """Prints how a stage goes on, and keeps what it took and gave."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._recent: list[float] = []
        self._mean: float | None = None
        self._began = time.monotonic()

    def report(self, step: int, loss: float) -> None:
        """Take a step's loss; print the mean of every ``_EVERY`` of them."""
        self._recent.append(loss)
        if len(self._recent) == _EVERY:
            self._mean = sum(self._recent) / _EVERY
            self._recent.clear()
            print(f"{self.name}: step {step + 1}, loss {self._mean:.4f}, {self._seconds():.0f} s", flush=True)

    def close(self, **results: Any) -> dict[str, Any]:
        """The stage's results with its duration and last mean loss."""
        training = {} if self._mean is None else {"train_loss": round(self._mean, 4)}
        stage = {"seconds": round(self._seconds(), 1), **training, **results}
        print(f"{self.name}: {json.dumps(stage)}", flush=True)
        return stage

    def _seconds(self) -> float:
        return time.monotonic() - self._began


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else nano.target_path().parent)

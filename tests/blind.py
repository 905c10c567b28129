"""A server with a fault that nobody is told of: what it says goes to ``diagnose``, and the ranked list comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from faulty_server import Served, log_line
from pair_worlds import World, sampled_world, world

import eagle3ref as e3
from eagle3ref.diagnose import Diagnosis, Laboratory, diagnose
from eagle3ref.servers import Evidence, Reading, read, read_object
from eagle3ref.servers.evidence.window_rounds import DECODE_LOG_INTERVAL

Told = Literal["request fields", "log line"]
CHAIN = e3.TreeConfig(3, 1, 4)
TREES = (e3.TreeConfig(4, 3, 9), e3.TreeConfig(5, 4, 16))
NEW_TOKENS = 24

# One of each family, and the ones that users report most.
FAULTS = (
    "eagle-flag",
    "capture-plus-1",
    "capture-minus-1",
    "capture-third-plus-1",
    "capture-order-3-1-2",
    "states-second-zero",
    "states-one-late",
    "states-rotated",
    "norm-before-residual-flipped",
    "inputs-swapped",
    "rope-layout-swapped",
    "d2t-absolute",
    "head-target-by-d2t",
    "head-random",
    "embedding-random",
    "loop-position-plus-1",
    "own-rows-kept",
    "cached-half-rows-missing",
    "one-step-fewer",
)
TWO_FAULTS = (
    ("capture-plus-1", "loop-position-plus-1"),
    ("states-second-zero", "own-rows-kept"),
    ("norm-before-residual-flipped", "capture-third-plus-1"),
)
# In trees, at a temperature, and in a log: fewer, and what only trees can have wrong.
SOME_FAULTS = ("eagle-flag", "capture-third-plus-1", "norm-before-residual-flipped", "d2t-absolute", "own-rows-kept")
TREE_FAULTS = (*SOME_FAULTS[:-1], "one-step-fewer", "one-draft-token-fewer", "tree-rows-ancestor")


@dataclass(frozen=True)
class Blind:
    """One run: what was wrong, and what came out.

    Args:
        faults: the server's, in words of the catalogue; empty if there was none.
        diagnosis: of what it said.
        shows: whether a round of the requests is another one than with fewer faults; else nothing can find them.
    """

    faults: tuple[str, ...]
    diagnosis: Diagnosis
    shows: bool

    @property
    def name(self) -> str:
        """As the catalogue names it."""
        return " + ".join(self.faults) or "right"

    @property
    def rank(self) -> int | None:
        """Place of the truth in the table, from 1; None if it is not in it."""
        truth = {self.name, " + ".join(reversed(self.faults))}
        places = [i for i, candidate in enumerate(self.diagnosis.ranked, 1) if candidate.name in truth]
        return places[0] if places else None

    @property
    def found(self) -> bool:
        """Whether the truth is among the leading ones."""
        return bool({self.name, " + ".join(reversed(self.faults))} & set(self.diagnosis.names))


@cache
def laboratory(kind: str, num_prompts: int) -> Laboratory:
    """One for all tests of a pair: what one of them replays, the others find done."""
    return world(kind, num_prompts, NEW_TOKENS).laboratory(CHAIN)


@cache
def served(
    kind: str, num_prompts: int, tree: e3.TreeConfig, faults: tuple[str, ...], temperature: float = 0.0
) -> tuple[Served, ...]:
    """The answers of a server with these faults."""
    here = world_at(kind, num_prompts, temperature)
    server = here.server(tree, faults)
    return tuple(server.answer(prompt, NEW_TOKENS) for prompt in here.prompts)


def world_at(kind: str, num_prompts: int, temperature: float) -> World:
    """A pair with greedy or with drawn answers."""
    if temperature:
        return sampled_world(kind, num_prompts, NEW_TOKENS, temperature)
    return world(kind, num_prompts, NEW_TOKENS)


def log_lines(answers: Sequence[Served]) -> list[str]:
    """One for every 40 rounds, as SGLang logs one request at a time; the rounds after the last line are in none."""
    first = answers[0]
    accepted = [c for answer in answers for c in answer.num_accepted]
    starts = range(0, len(accepted) - DECODE_LOG_INTERVAL + 1, DECODE_LOG_INTERVAL)
    windows = [accepted[start : start + DECODE_LOG_INTERVAL] for start in starts]
    return [
        log_line([Served([], list(range(len(some))), some, first.num_steps, first.num_draft_tokens)])
        for some in windows
    ]


def evidence_of(here: World, answers: Sequence[Served], told: Told) -> Evidence:
    """What the server says, through the readers that read real ones."""
    statements = list(read(log_lines(answers)))
    if told == "request fields":
        for prompt, answer in zip(here.prompts, answers, strict=True):
            for one in read_object({"output_ids": answer.tokens, "meta_info": answer.meta_info()}):
                assert isinstance(one, Reading)
                statements.append(replace(one, prompt_ids=tuple(prompt)))
    return Evidence.gather(statements)


def run_blind(
    kind: str,
    faults: Sequence[str],
    told: Told,
    *,
    num_prompts: int,
    tree: e3.TreeConfig = CHAIN,
    temperature: float = 0.0,
) -> Blind:
    """Serve, and diagnose what was said; the tree is the one of the server's flags."""
    here = world_at(kind, num_prompts, temperature)
    fewer = [(), *((fault,) for fault in faults if len(faults) > 1), tuple(faults)]
    *others, answers = (served(kind, num_prompts, tree, some, temperature) for some in fewer)
    found = diagnose(here.trace, here.draft, evidence_of(here, answers, told), tree, target=here.target.target)
    shows = not faults or all(
        [one.num_accepted for one in answers] != [one.num_accepted for one in other] for other in others
    )
    return Blind(tuple(faults), found, shows)

"""The rounds of a run once more, by the reference, and where the engine's differ.

Greedy runs share one trace: the target's own text, written further than any answer, so that the last round of an answer
is counted as the engine counts it. A sampled run is replayed on the engine's own answers; what its last round accepted
behind their end is not known, and is not compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.nn import Prefix, Rows
from eagle3ref.target.generate import generate
from engines import kimi
from engines.drafts import FLAT_IDS, TARGET, write_draft
from engines.pairs import prompts_of
from engines.plan import HONOURED, OUTPUT_IDS, POINTS, Pair, Run
from engines.recording import Recording

LONGEST = 48
LOOKAHEAD = 6  # more than any depth
BATCH_TOKENS = 2048  # prompts differ much in length, and a batch is as wide as its longest
PADDING = -1  # what vLLM writes where it drafted nothing
CAPTURED = tuple(sorted({*POINTS, *OUTPUT_IDS, *FLAT_IDS}))
TreeKV = Literal["slot", "ancestor"]


@dataclass(frozen=True)
class Round:
    """One round: index of its root, accepted drafts, and the tree as an engine writes it (vLLM: tokens only)."""

    root: int
    accepted: int
    tokens: list[int]
    links: tuple[list[int], list[int]] | None


@cache
def _kimi_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="eagle3ref-kimi-"))


@cache
def target(pair: Pair = "llama") -> e3.Target:
    folder = TARGET if pair == "llama" else kimi.write_target(_kimi_folder() / "target")
    return e3.load_target(folder, dtype=torch.float32)


@cache
def draft(points: tuple[int, ...], variant: str = "", pair: Pair = "llama") -> Eagle3Draft:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder = write_draft(OUTPUT_IDS, variant, folder) if pair == "llama" else kimi.write_draft(OUTPUT_IDS, folder)
        return e3.load_draft(folder, target=target(pair), capture_points=points, dtype=torch.float32)


@cache
def prompts(pair: Pair = "llama") -> list[Tensor]:
    return [torch.tensor(prompt) for prompt in prompts_of(pair)]


def points_of(run: Run) -> tuple[int, ...]:
    """The streams that the engine captures: SGLang adds 1 to the ids in ``eagle_config``, vLLM takes them as they are.

    For Kimi's kind of target SGLang adds 1 only if the first id is 1.

    Ids at the top level of config.json are vLLM's own key. SGLang does not read it, and falls back to its default,
    which for this target is what the draft was trained on.
    """
    if run.variant == "flat_ids":
        return FLAT_IDS if run.engine == "vllm" else POINTS
    adds_one = run.engine == "sglang" and (run.pair == "llama" or run.ids[0] == 1)
    return tuple(i + 1 for i in run.ids) if adds_one else run.ids


def served_draft(run: Run) -> Eagle3Draft:
    """What the engine makes of the run's draft: without a change that it does not honour."""
    return draft(points_of(run), run.variant if run.variant in HONOURED[run.engine] else "", run.pair)


def tree_of(run: Run, tree_kv: TreeKV = "slot") -> e3.TreeConfig:
    return e3.TreeConfig(run.num_steps, run.topk, run.num_draft_tokens, tree_kv)


@cache
def greedy_answers(pair: Pair = "llama") -> list[list[int]]:
    """The target's own, ``LOOKAHEAD`` longer than the longest of a run."""
    return [answer.tolist() for answer in generate(target(pair), prompts(pair), max_new_tokens=LONGEST + LOOKAHEAD)]


@cache
def greedy_trace(pair: Pair, num_prompts: int, max_new_tokens: int) -> e3.Trace:
    answers = greedy_answers(pair)[:num_prompts]
    return capture(pair, [answer[: max_new_tokens + LOOKAHEAD] for answer in answers])


def capture(pair: Pair, answers: Iterable[Iterable[int]]) -> e3.Trace:
    """A trace of these answers to the first prompts, made once."""
    return _capture(pair, tuple(map(tuple, answers)))


@cache
def _capture(pair: Pair, answers: tuple[tuple[int, ...], ...]) -> e3.Trace:
    folder = tempfile.mkdtemp(prefix="eagle3ref-engines-")
    recorded = [e3.Prompt(str(i), prompts(pair)[i], torch.tensor(answer)) for i, answer in enumerate(answers)]
    return e3.capture(target(pair), recorded, Path(folder) / "trace", capture_points=CAPTURED)


def trace_of(run: Run, recording: Recording) -> e3.Trace:
    if run.temperature > 0:
        return capture(run.pair, recording["answers"])
    return greedy_trace(run.pair, run.num_prompts, run.max_new_tokens)


def replayed(
    recording: Recording, trace: e3.Trace, head: Eagle3Draft, tree: e3.TreeConfig
) -> list[list[tuple[int, int]]]:
    """(root, accepted drafts) of each round of each answer, as far as the answer goes."""
    found: list[list[tuple[int, int]]] = [[] for _ in recording["answers"]]
    for sequence in e3.replay_rounds(trace, head, tree, batch_tokens=BATCH_TOKENS):
        i = int(sequence.id)
        last = trace.sequence(sequence.id).prompt_length + len(recording["answers"][i]) - 1
        rounds = zip(sequence.roots.tolist(), sequence.num_accepted.tolist(), strict=True)
        found[i] = [(root, accepted) for root, accepted in rounds if root < last]
    return found


def padded_rounds(recording: Recording) -> int:
    """Rounds that vLLM counts although it drafted nothing."""
    return sum(tokens == len(tokens) * [PADDING] for answer in recording["rounds"] for _, tokens in answer)


def recorded_rounds(run: Run, recording: Recording) -> list[list[Round]]:
    """The engine's rounds, each with its root: the first is the first generated token, a round commits c + 1 tokens.

    A padded round gives that first token, and is left out.
    """
    answers = []
    for prompt, rounds in zip(prompts(run.pair), recording["rounds"], strict=False):
        root, answer = len(prompt), []
        for accepted, tokens, *links in rounds:
            if PADDING in tokens:
                continue
            drafted = tokens[1:] if run.engine == "sglang" else tokens
            answer.append(Round(root, accepted, drafted, tuple(links) or None))
            root += accepted + 1
        answers.append(answer)
    return answers


def reference_rounds(
    recording: Recording, trace: e3.Trace, head: Eagle3Draft, tree: e3.TreeConfig, *, linked: bool
) -> list[list[Round]]:
    """The same rounds by the reference: walk by replay, trees by one causal pass over each answer."""
    answers: list[list[Round]] = []
    for i, rounds in enumerate(replayed(recording, trace, head, tree)):
        if not rounds:
            answers.append([])
            continue
        trees = drafted_trees(trace, i, torch.tensor([root for root, _ in rounds]), head, tree)
        columns = (column.tolist() for column in (trees.tokens[:, 1:], trees.next_token, trees.next_sibling))
        answers.append(
            [
                Round(*walked, tokens, (next_token, sibling) if linked else None)
                for walked, tokens, next_token, sibling in zip(rounds, *columns, strict=True)
            ]
        )
    return answers


@torch.inference_mode()
def drafted_trees(trace: e3.Trace, i: int, roots: Tensor, head: Eagle3Draft, tree: e3.TreeConfig) -> e3.DraftTree:
    """The trees at these roots of sequence i: one causal pass over all rows, without a cache or a batch."""
    sequence = trace.sequence(str(i))
    tokens = sequence.tokens
    aux = torch.cat([sequence.aux_hidden_states[point] for point in head.capture_points], -1)
    row = torch.arange(len(tokens) - 1)
    output = head(head.fuse(aux[:-1])[None, None], tokens[None, None, 1:], row[None, None], mask=row[:, None] >= row)
    prefix = [
        Prefix(Rows(rows.first[:, 0], rows.second[:, 0]), (row < roots[:, None])[None, :, None]) for rows in output.rows
    ]
    first = FirstLevel(output.state[:, 0, roots - 1], *best_next(head, output.normed[:, 0, roots - 1], tree.topk))
    return e3.build_tree(
        propose(head, first, roots[None], prefix, tree),
        root_tokens=tokens[roots],
        prefix_lengths=roots,
        num_draft_tokens=tree.num_draft_tokens,
    )


@dataclass(frozen=True)
class Agreement:
    """How many rounds of a run agree, and the first that does not, in words."""

    rounds: int
    agreeing: int
    first_difference: str = ""

    @property
    def complete(self) -> bool:
        return self.agreeing == self.rounds > 0


def compare(run: Run, recording: Recording, head: Eagle3Draft | None = None, tree_kv: TreeKV = "slot") -> Agreement:
    """Hold a run's rounds against the reference's with what the engine makes of the draft, or with another ``head``.

    Requests served side by side have no rounds of their own in SGLang; their histograms are compared instead.
    """
    trace, tree = trace_of(run, recording), tree_of(run, tree_kv)
    head = head or served_draft(run)
    if recording["rounds"] is None:
        return _compare_histograms(recording, replayed(recording, trace, head, tree))
    theirs = recorded_rounds(run, recording)
    ours = reference_rounds(recording, trace, head, tree, linked=run.engine == "sglang")
    rounds = agreeing = 0
    difference = ""
    for i, (recorded, reference) in enumerate(zip(theirs, ours, strict=True)):
        end = len(trace.sequence(str(i)).tokens) - 1
        for n, pair in enumerate(zip_longest(recorded, reference)):
            # What a round accepted behind the end of the trace is not known.
            engine, own = (made and replace(made, accepted=min(made.accepted, end - made.root)) for made in pair)
            rounds, agreeing = rounds + 1, agreeing + (engine == own)
            if engine != own and not difference:
                difference = f"request {i}, round {n}: {engine} by the engine, {own} by the reference"
    return Agreement(rounds, agreeing, difference)


def _compare_histograms(recording: Recording, ours: list[list[tuple[int, int]]]) -> Agreement:
    histograms = recording["meta_info"]["spec_correct_drafts_histogram"]
    expected = [torch.bincount(torch.tensor([accepted for _, accepted in rounds])).tolist() for rounds in ours]
    same = [theirs == mine for theirs, mine in zip(histograms, expected, strict=True)]
    counts = recording["meta_info"]["spec_verify_ct"]
    difference = "" if all(same) else f"request {same.index(False)}: another histogram"
    return Agreement(sum(counts), sum(n for n, agrees in zip(counts, same, strict=True) if agrees), difference)

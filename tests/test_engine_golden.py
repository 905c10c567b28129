"""What the real SGLang 0.5.23 and vLLM 0.32.0 did with a small trained Llama pair, round by round.

The pair and the engines' own outputs are in ``golden/engines``; no engine is needed. Both ran on a CPU in fp32,
greedily, one request at a time. SGLang adds 1 to the layer ids of the draft's config and vLLM does not, so vLLM's first
run had its ids raised by one; its second run had SGLang's ids, the mis-wiring that neither engine warns of.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.engines import sglang_capture_points
from eagle3ref.nn import Prefix, Rows
from eagle3ref.target.generate import generate

GOLDEN = Path(__file__).parent / "golden" / "engines"
SGLANG = json.loads((GOLDEN / "sglang_0_5_23.json").read_text())
VLLM = json.loads((GOLDEN / "vllm_0_32_0.json").read_text())
PROMPTS = [torch.tensor(prompt) for prompt in SGLANG["prompts"]]
NEW_TOKENS = SGLANG["max_new_tokens"]
POINTS = (2, 4, 5)  # what the draft was trained on
MISWIRED = (1, 3, 4)  # the ids of its config, read as they are
Run = dict[str, Any]

SGLANG_RUNS = [
    pytest.param(run, id="-".join(str(run[name]) for name in ("num_steps", "topk", "num_draft_tokens")))
    for run in SGLANG["runs"]
]
VLLM_RUNS = [pytest.param(run, id=f"ids-{run['eagle_aux_hidden_state_layer_ids']}") for run in VLLM["runs"]]
RUNS = [*SGLANG_RUNS, *VLLM_RUNS]


@cache
def target() -> e3.Target:
    return e3.load_target(GOLDEN / "target", dtype=torch.float32)


@cache
def draft(points: tuple[int, ...]) -> Eagle3Draft:
    return e3.load_draft(GOLDEN / "draft", target=target(), capture_points=points, dtype=torch.float32)


@cache
def live(prompt: int, points: tuple[int, ...], tree: e3.TreeConfig) -> e3.Decoded:
    return e3.decode(target(), draft(points), PROMPTS[prompt], tree, max_new_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> e3.Trace:
    """SGLang's answers, with the states of both wirings."""
    answers = [torch.tensor(answer) for answer in SGLANG["runs"][0]["answers"]]
    prompts = [e3.Prompt(str(i), *pair) for i, pair in enumerate(zip(PROMPTS, answers, strict=True))]
    points = sorted({*POINTS, *MISWIRED})
    return e3.capture(target(), prompts, tmp_path_factory.mktemp("golden") / "trace", capture_points=points)


def tree_of(run: Run, tree_kv: str = "slot") -> e3.TreeConfig:
    if "topk" not in run:
        return e3.TreeConfig(run["num_speculative_tokens"], 1, run["num_speculative_tokens"] + 1)
    return e3.TreeConfig(run["num_steps"], run["topk"], run["num_draft_tokens"], tree_kv)


def points_of(run: Run) -> tuple[int, ...]:
    return tuple(run.get("eagle_aux_hidden_state_layer_ids", POINTS))


def accepted(run: Run) -> list[list[int]]:
    return [[made["accepted"] for made in rounds] for rounds in run["rounds"]]


def roots_of(prompt: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Token index of each root: the first is the first generated token, a round commits c + 1 tokens."""
    return len(prompt) + torch.tensor([0, *counts[:-1]]).add(1).cumsum(0) - 1


def counts_of(depths: torch.Tensor, counts: list[int], tree: e3.TreeConfig) -> e3.AcceptanceCounts:
    """Counts of rounds with these node depths [R, N], those that run past the answer's end included."""
    return e3.AcceptanceCounts(
        tree=tree,
        prompt_ids=("all",),
        histogram=np.bincount(counts, minlength=tree.num_steps + 1)[None],
        proposed_at=torch.bincount(depths.flatten(), minlength=tree.num_steps + 1)[None, 1:].numpy(),
        censored_rounds=np.zeros(1, np.int64),
        off_argmax_tokens=np.zeros(1, np.int64),
        recorded_tokens=np.zeros(1, np.int64),
        kind="exact",
    )


def all_rounds(trace: e3.Trace, run: Run) -> tuple[torch.Tensor, list[int]]:
    """Node depths [R, N] and accepted drafts of every round of the run, in order."""
    trees = [drafted_trees(trace, run, i, tree_of(run)) for i in range(len(PROMPTS))]
    return torch.cat([tree.depths for tree in trees]), [count for answer in accepted(run) for count in answer]


@torch.inference_mode()
def drafted_trees(trace: e3.Trace, run: Run, i: int, tree: e3.TreeConfig) -> e3.DraftTree:
    """The trees at the engine's roots of answer i: one causal pass over all rows, without a cache or a batch."""
    sequence, head = trace.sequence(str(i)), draft(points_of(run))
    tokens, roots = sequence.tokens, roots_of(PROMPTS[i], accepted(run)[i])
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


def test_the_layer_ids_mean_what_each_engine_makes_of_them() -> None:
    """Catches a changed +1 rule: SGLang's Llama targets add 1, and the loader must come to the same streams."""
    assert sglang_capture_points(SGLANG["eagle_aux_hidden_state_layer_ids"], 8, "llama") == POINTS
    assert e3.load_draft(GOLDEN / "draft", target=GOLDEN / "target").capture_points == POINTS
    assert [points_of(run) for run in VLLM["runs"]] == [POINTS, MISWIRED]


def test_both_engines_wrote_the_targets_greedy_text() -> None:
    """Catches a wrong target forward (rope, grouping, norms), and an engine run that was not lossless."""
    greedy = [answer.tolist() for answer in generate(target(), PROMPTS, max_new_tokens=NEW_TOKENS)]
    assert SGLANG["prompts"] == VLLM["prompts"]
    assert all(run["answers"] == greedy for run in SGLANG["runs"] + VLLM["runs"])


@pytest.mark.parametrize("run", RUNS)
def test_replay_accepts_what_the_engine_accepted(trace: e3.Trace, run: Run) -> None:
    """Catches any error of draft, capture points, draft cache, tree or walk: every round, and every next root."""
    for sequence in e3.replay_rounds(trace, draft(points_of(run)), tree_of(run)):
        prompt, counts = PROMPTS[int(sequence.id)], accepted(run)[int(sequence.id)]
        assert sequence.roots.tolist() == roots_of(prompt, counts).tolist()
        recorded_after = len(prompt) + NEW_TOKENS - 1 - sequence.roots  # behind the recorded end nothing can match
        assert sequence.num_accepted.tolist() == torch.tensor(counts).minimum(recorded_after).tolist()


@pytest.mark.parametrize("run", SGLANG_RUNS)
def test_trees_are_those_that_sglang_verified(trace: e3.Trace, run: Run) -> None:
    """Catches a wrong candidate, score, order, parent or sibling, even one that no round happened to accept."""
    for i, rounds in enumerate(run["rounds"]):
        trees = drafted_trees(trace, run, i, tree_of(run))
        for name in ("tokens", "next_token", "next_sibling"):
            assert getattr(trees, name).tolist() == [made[name] for made in rounds], (i, name)


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_drafts_are_those_that_vllm_scheduled(trace: e3.Trace, run: Run) -> None:
    """Catches a wrong draft token behind the first rejected one, which no accepted count shows."""
    for i, rounds in enumerate(run["rounds"]):
        trees = drafted_trees(trace, run, i, tree_of(run))
        assert trees.tokens[:, 1:].tolist() == [made["tokens"] for made in rounds]


@pytest.mark.parametrize("run", RUNS[:-1])  # the mis-wired run is long, and its drafts are tested above
def test_live_decoding_runs_the_engines_rounds(run: Run) -> None:
    """Catches a round too many or too few at the end of an answer, and a cache that keeps a rejected row."""
    for i, (answer, counts) in enumerate(zip(run["answers"], accepted(run), strict=True)):
        decoded = live(i, points_of(run), tree_of(run))
        assert (decoded.tokens.tolist(), decoded.num_accepted) == (answer, counts)


@pytest.mark.parametrize("run", SGLANG_RUNS[-1:])
def test_sglang_drafts_with_rows_of_its_slots(trace: e3.Trace, run: Run) -> None:
    """Catches the two KV modes being exchanged: with the rows of true ancestors some trees are not SGLang's."""
    tree = tree_of(run, "ancestor")
    others = [drafted_trees(trace, run, i, tree).tokens.tolist() for i in range(len(PROMPTS))]
    assert others != [[made["tokens"] for made in rounds] for rounds in run["rounds"]]


@pytest.mark.parametrize("run", SGLANG_RUNS)
def test_log_lines_are_those_that_sglang_printed(trace: e3.Trace, run: Run) -> None:
    """Catches another definition of accept len or accept rate than that of 0.5.23, to the printed digit."""
    window, (depths, counts) = run["decode_log_interval"], all_rounds(trace, run)
    assert len(run["log_lines"]) == len(counts) // window
    for i, line in enumerate(run["log_lines"]):
        part = slice(i * window, (i + 1) * window)
        assert e3.SGLANG_0_5_23.log_line(counts_of(depths[part], counts[part], tree_of(run))) in line


@pytest.mark.parametrize("run", SGLANG_RUNS)
def test_meta_info_of_a_request_is_no_acceptance_length(run: Run) -> None:
    """Catches taking ``spec_accept_length`` for the log's figure: it has the prefill's token, and an end cut off."""
    tree = tree_of(run)
    for i, meta in enumerate(run["meta_info"]):
        decoded = live(i, POINTS, tree)
        rounds, found = len(decoded.num_accepted), sum(decoded.num_accepted)
        assert meta["spec_correct_drafts_histogram"] == torch.bincount(torch.tensor(decoded.num_accepted)).tolist()
        assert (meta["spec_verify_ct"], meta["spec_num_correct_drafts"]) == (rounds, found)
        assert meta["spec_num_proposed_drafts"] == rounds * (tree.num_draft_tokens - 1)
        assert meta["spec_accept_length"] == len(decoded.tokens) / rounds


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_metrics_are_those_that_vllm_reported(trace: e3.Trace, run: Run) -> None:
    """Catches a bonus token counted twice or not at all, and rates by position that are conditional, not joint."""
    counts, metrics = counts_of(*all_rounds(trace, run), tree_of(run)), run["metrics"]
    drafts, found = metrics["spec_decode_num_drafts"], metrics["spec_decode_num_accepted_tokens"]
    assert (counts.total_rounds, counts.accepted_drafts.sum()) == (drafts, found)
    assert counts.acceptance_length == pytest.approx(1 + found / drafts, abs=1e-12)
    assert counts.node_acceptance_rate == found / metrics["spec_decode_num_draft_tokens"]
    assert counts.accepted_at[0].tolist() == metrics["spec_decode_num_accepted_tokens_per_pos"]


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_log_lines_are_those_that_vllm_printed(trace: e3.Trace, run: Run) -> None:
    """Catches another definition of the figures in vLLM's own line, which is printed every so many seconds."""
    depths, counts = all_rounds(trace, run)
    warm_up = run["warm_up_rounds"]  # of the first prompt, whose rounds are the same
    depths, counts = torch.cat((depths[:warm_up], depths)), counts[:warm_up] + counts
    for line in run["log_lines"]:
        rounds = int(re.findall(r"Drafted: (\d+) tokens", line)[0]) // tree_of(run).num_steps
        window = counts_of(depths[:rounds], counts[:rounds], tree_of(run))
        by_position = ", ".join(f"{rate:.3f}" for rate in window.acceptance_rate_at)
        assert f"Mean acceptance length: {window.acceptance_length:.2f}, " in line
        assert f"Per-position acceptance rate: {by_position}, " in line
        assert f"Avg Draft acceptance rate: {100 * window.node_acceptance_rate:.1f}%" in line
        depths, counts = depths[rounds:], counts[rounds:]
    assert counts == []


def test_the_miswired_run_is_told_apart(trace: e3.Trace) -> None:
    """Catches a wiring that makes no difference: the same folder gave the same text and a lower length, as replayed."""
    right, wrong = (counts_of(*all_rounds(trace, run), tree_of(run)).acceptance_length for run in VLLM["runs"])
    assert right > wrong + 0.2
    tree = tree_of(VLLM["runs"][0])
    replayed = {points: e3.replay(trace, draft(points), tree).acceptance_length for points in (POINTS, MISWIRED)}
    assert abs(replayed[POINTS] - right) < 0.1 > abs(replayed[MISWIRED] - wrong)

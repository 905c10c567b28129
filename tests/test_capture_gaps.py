"""Whose answers are these? The gap that capture records, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from streamed_captures import InBlocks, capture, make_prompts, stream
from tiny import target_folder
from trace_parts import make_header, make_sequence, refused

import eagle3ref as e3
from eagle3ref.inspection import OffArgmax, summarize_trace
from eagle3ref.report.inspection import trace_report
from eagle3ref.target.base import LayerMajorTarget
from eagle3ref.target.generate import generate
from eagle3ref.trace import TraceWriter


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("kind", ["streamed", "resident", "in blocks"])
def test_gaps_are_differences_of_log_probabilities(checkpoint, tmp_path, monkeypatch, kind):
    """Catches rows off by one, a gap against another token, base 2, and a last row held against nothing."""
    monkeypatch.setattr("eagle3ref.trace.block_pass._LOGITS_ROWS", 4)  # cut in the middle of sequences
    resident = e3.load_target(checkpoint, dtype=torch.float32)
    target = {"streamed": stream(checkpoint), "resident": resident, "in blocks": InBlocks(resident)}[kind]
    assert isinstance(target, LayerMajorTarget) == (kind != "in blocks")
    trace = capture(target, tmp_path / "t")
    exact = e3.load_target(checkpoint, dtype=torch.float64)
    for sequence in trace:
        output = exact.forward(sequence.tokens[None])
        logprobs = exact.logits(output.final_hidden_state)[0].log_softmax(-1)
        best = logprobs.max(-1)
        assert sequence.argmax.tolist() == best.indices.tolist()
        recorded = logprobs[:-1].gather(-1, sequence.tokens[1:, None])[:, 0]
        assert sequence.logprob_gap.dtype == torch.float32
        torch.testing.assert_close(
            sequence.logprob_gap[:-1].double(), best.values[:-1] - recorded, atol=1e-4, rtol=1e-4
        )
        assert sequence.logprob_gap[-1] == 0
        assert len(sequence.off_argmax_gaps) == sequence.off_argmax_tokens > 0
        assert sequence.off_argmax_gaps.min() > 0


def test_a_trace_with_bad_gaps_is_refused(tmp_path):
    """Catches gaps that an importer got the wrong way round, of another length, or of a target that overflows."""
    sequence = make_sequence(0)
    rows = len(sequence.tokens)
    refused(r"logprob_gap .*\[4\]", lambda: make_sequence(0, logprob_gap=torch.zeros(4)))
    refused("logprob_gap .*float64", lambda: make_sequence(0, logprob_gap=torch.zeros(rows).double()))
    for value in (-0.5, float("inf"), float("nan")):
        gaps = torch.zeros(rows)
        gaps[2] = value
        with TraceWriter.open(tmp_path / str(value), make_header()) as writer:
            bad = make_sequence(0, logprob_gap=gaps)
            refused("logprob_gap, first at position 2", lambda bad=bad, writer=writer: writer.add(bad))


def recorded_by_hand(path: Path, gaps: list[list[float]], temperature: float = 0.0) -> OffArgmax:
    """One answer for each list of gaps; where a gap is 0 the recorded token is the argmax."""
    header = make_header(sampling=e3.trace.RecordedSampling(temperature, 1.0, 0, None))
    with TraceWriter.open(path, header) as writer:
        for number, answer in enumerate(gaps):
            tokens = torch.arange(2 + len(answer)) % 40
            argmax = torch.tensor([1, *(token + (gap > 0) for token, gap in zip(tokens[2:], answer, strict=True)), 0])
            recorded = torch.tensor([0.0, *answer, 0.0])
            states = {point: torch.zeros(len(tokens), 4).bfloat16() for point in (1, 2)}
            writer.add(e3.trace.RecordedSequence(f"s{number}", tokens, 2, states, argmax=argmax, logprob_gap=recorded))
    return summarize_trace(e3.Trace.open(path)).off_argmax


def test_shares_medians_and_worst_sequences_by_hand(tmp_path):
    """Catches a median over all tokens, tokens of the prompt counted, and the longest sequence named the worst."""
    found = recorded_by_hand(tmp_path / "t", [[0, 0, 0.2, 0, 0, 0, 0, 0], [0.4, 3.0], [0, 0, 0]])
    assert (found.judged_tokens, found.tokens, found.share) == (13, 3, 3 / 13)
    assert (found.median_gap, found.largest_gap) == (pytest.approx(0.4), 3.0)
    worst = [(one.id, one.tokens, one.generated_tokens, one.largest_gap) for one in found.worst]
    assert worst == [("s1", 2, 2, 3.0), ("s0", 1, 8, pytest.approx(0.2))]


@pytest.mark.parametrize(
    ("gaps", "temperature", "odd"),
    [
        ([0.0] * 400, 0.0, False),
        ([0.4] * 3 + [0.0] * 397, 0.0, False),  # rounding
        ([1.5] + [0.3] * 8 + [0.0] * 391, 0.0, False),  # rounding of long answers in bf16
        ([0.4] * 13 + [0.0] * 387, 0.0, True),  # too many for it
        ([3.1] + [0.0] * 399, 0.0, True),  # too far for it
        ([0.4] * 2 + [0.0] * 18, 0.0, False),  # two tokens are no share
        ([1.5] * 400, 0.8, False),
        ([6.0] * 100 + [0.0] * 300, 0.8, False),
        ([4.0] * 400, 0.8, True),
        ([4.0] * 400, 1.3, False),
    ],
)
def test_the_verdict_follows_share_and_gap(tmp_path, gaps, temperature, odd):
    """Catches sampled answers suspected for being sampled, and a verdict that never comes or always does."""
    found = recorded_by_hand(tmp_path / "t", [gaps], temperature)
    assert (found.verdict is not None) == odd
    if odd:
        assert "do not look like this target's own" in found.verdict


@pytest.fixture(scope="module")
def nano() -> tuple[e3.Target, list[e3.Prompt]]:
    prompts, _ = e3.read_prompts(e3.nano.prompts_path(), e3.nano.target_path())
    return e3.load_target(e3.nano.target_path(), dtype=torch.float32), prompts[:8]


@pytest.mark.parametrize(
    "sampling", [e3.Sampling(), pytest.param(e3.Sampling(1.0, 0.95, seed=3), marks=pytest.mark.slow)]
)
def test_own_answers_are_not_suspected(nano, tmp_path, sampling):
    """Catches thresholds that a trained model's own answers cross."""
    target, prompts = nano
    trace = e3.capture(target, prompts, tmp_path / "t", capture_points=(2,), max_new_tokens=24, sampling=sampling)
    found = summarize_trace(trace).off_argmax
    assert found.verdict is None
    assert (found.tokens > 0) == (sampling.temperature > 0)


@pytest.mark.parametrize(
    "of",
    ["another template", *(pytest.param(of, marks=pytest.mark.slow) for of in ("other weights", "sampled as greedy"))],
)
def test_answers_of_another_model_or_template_are_suspected(nano, tmp_path, of):
    """Catches the mistakes of the field: a server with another chat template, another quantization, a temperature."""
    target, prompts = nano
    sampling, tokens = e3.Sampling(), [prompt.tokens for prompt in prompts]
    if of == "another template":
        tokens = [torch.cat((ids, ids[:3])) for ids in tokens]
    elif of == "other weights":
        target = e3.load_target(e3.nano.target_path(), dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        for parameter in target.parameters():
            if parameter.dim() == 2:
                parameter.data += 0.1 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    else:
        sampling = e3.Sampling(0.8, seed=3)
    answers = generate(target, tokens, max_new_tokens=24, sampling=sampling)
    given = [e3.Prompt(p.id, p.tokens, answer) for p, answer in zip(prompts, answers, strict=True)]
    trace = e3.capture(nano[0], given, tmp_path / "t", capture_points=(2,))
    summary = summarize_trace(trace)
    assert "do not look like this target's own greedy answers" in (summary.off_argmax.verdict or "")
    assert trace_report(summary) is not None


def test_a_trace_without_gaps_is_judged_by_its_share(tmp_path):
    """Catches a report that fails on traces of an importer, which have an argmax and no gaps, or neither."""
    header = make_header()
    with TraceWriter.open(tmp_path / "t", header) as writer:
        for number in range(3):
            sequence = make_sequence(number)
            writer.add(make_sequence(number, argmax=(sequence.tokens.roll(-1) + 1) % 50))
        writer.add(make_sequence(4))
    found = summarize_trace(e3.Trace.open(tmp_path / "t")).off_argmax
    assert found.tokens == found.judged_tokens == sum(len(make_sequence(i).answer) for i in range(3))
    assert (found.median_gap, found.largest_gap) == (None, None)
    assert found.verdict is not None
    assert "nats" not in found.verdict.split(",")[0]


def test_one_token_answers_are_recorded(checkpoint, tmp_path):
    """Catches shapes that need two rows: one prompt token and one answer token."""
    prompts = [e3.Prompt("a", torch.tensor([3]), torch.tensor([4])), *make_prompts()[:1]]
    trace = capture(stream(checkpoint), tmp_path / "t", prompts)
    assert trace[0].tokens.tolist() == [3, 4]
    trace.check()

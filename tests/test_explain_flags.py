"""Server flags, read as a user types them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ref import Eagle3RefError
from eagle3ref.explain import parse_server_flags

TREE = {"num_steps": 5, "topk": 4, "num_draft_tokens": 16}
SPELLED = {
    "num_steps": "--speculative-num-steps",
    "topk": "--speculative-eagle-topk",
    "num_draft_tokens": "--speculative-num-draft-tokens",
}


@given(
    st.permutations(sorted(TREE)), st.lists(st.sampled_from(["separate", "equals", "python"]), min_size=3, max_size=3)
)
def test_every_way_of_writing_says_the_same(order: list[str], ways: list[str]) -> None:
    """Catches a way of writing a flag that is lost, or a value that is taken for the next flag."""
    words: list[str] = []
    for name, way in zip(order, ways, strict=True):
        flag, value = SPELLED[name], str(TREE[name])
        if way == "separate":
            words += [flag, value]
        else:
            words.append(f"{flag}={value}" if way == "equals" else f"{flag[2:].replace('-', '_')}={value},")
    assert parse_server_flags("SGLang", words).said == TREE


def test_a_whole_launch_command_can_be_pasted() -> None:
    """Catches switches that swallow the next word, and words of the launcher taken for settings."""
    line = (
        "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code "
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/draft "
        "--speculative-use-rejection-sampling --speculative-num-steps 3 --enable-deterministic-inference "
        "--speculative-accept-threshold-acc 0.9 --mem-fraction-static 0.8"
    )
    flags = parse_server_flags("SGLang", line.split())
    assert flags.said == {
        "target_path": "moonshotai/Kimi-K2.5",
        "algorithm": "EAGLE3",
        "draft_path": "/models/draft",
        "rejection_sampling": True,
        "num_steps": 3,
        "deterministic": True,
        "threshold_acc": 0.9,
    }
    assert "--tp 8" in flags.unrelated
    assert "--mem-fraction-static 0.8" in flags.unrelated
    assert flags.misspelled == ()
    assert parse_server_flags("SGLang", [line[line.index("--model-path") :]]).said == flags.said


def test_vllms_json_is_taken_apart() -> None:
    """Catches JSON that is passed over, in any of the ways in which vLLM takes it."""
    settings = {"method": "eagle3", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic", "revision": 1}
    said = {"algorithm": "eagle3", "num_steps": 3, "draft_sample_method": "probabilistic"}
    text = json.dumps(settings)
    for words in (["--speculative-config", text], ["-sc", text], [f"--speculative_config={text}"]):
        flags = parse_server_flags("vLLM", words)
        assert flags.said == said
        assert len(flags.unrelated) == 1
        assert flags.unrelated[0].endswith("revision")
    assert parse_server_flags("vLLM", ["--speculative-config.method", "eagle3", "--spec-tokens", "3"]).said == {
        "algorithm": "eagle3",
        "num_steps": 3,
    }


def test_a_misspelled_key_of_vllms_json_is_named() -> None:
    """Catches a typo that is passed over: vLLM refuses keys that it does not know."""
    flags = parse_server_flags("vLLM", ["-sc", '{"method": "eagle3", "num_speculative_token": 3}'])
    assert [flag.meant for flag in flags.misspelled] == [("num_speculative_tokens",)]
    assert flags.said == {"algorithm": "eagle3"}


@pytest.mark.parametrize(
    ("engine", "words", "typed"),
    [
        ("vLLM", ["-sc", '{"speculative_token_tree": "[(0,)]"}'], "-sc speculative_token_tree"),
        ("vLLM", ["--speculative-config.seed", "1"], "--speculative-config seed"),
        ("vLLM", ["--speculative-algorithm", "EAGLE3"], "--speculative-algorithm"),
        ("SGLang", ["--speculative-config", "{}"], "--speculative-config"),
    ],
)
def test_a_speculative_setting_of_another_engine_or_release_is_refused(
    engine: str, words: list[str], typed: str
) -> None:
    """Catches a setting that the parser of this engine would not take, passed over as if it changed nothing."""
    flags = parse_server_flags(engine, words)
    assert [(flag.typed, flag.meant) for flag in flags.misspelled] == [(typed, ())]
    assert flags.said == {}


@pytest.mark.parametrize("engine", ["SGLang", "vLLM"])
def test_a_flag_that_was_never_looked_up_is_not_called_irrelevant(engine: str) -> None:
    """Catches a typo, or a flag of a newer release, listed as if it were known to change nothing."""
    flags = parse_server_flags(engine, ["--foo-bar", "3", "--dtype", "half", "--specialize-active-lora"])
    assert flags.unknown[0] == "--foo-bar 3"
    assert flags.unrelated[0] == "--dtype half"
    assert flags.misspelled == ()


@pytest.mark.parametrize(
    ("typed", "tokens"), [("32768", 32768), ("32k", 32000), ("32K", 32768), ("25.6k", 25600), ("1M", 1048576)]
)
def test_vllms_lengths_may_have_a_unit(typed: str, tokens: int) -> None:
    """Catches `--max-model-len 32k`, which vLLM takes, refused or read as another length."""
    assert parse_server_flags("vLLM", ["--max-model-len", typed]).context_length == tokens


@pytest.mark.parametrize("typed", ["auto", "-1"])
def test_a_length_that_vllm_chooses_is_none(typed: str) -> None:
    """Catches -1 taken for a number of tokens."""
    assert parse_server_flags("vLLM", ["--max-model-len", typed]).context_length is None


def test_switches_can_be_turned_off() -> None:
    """Catches ``False`` read as a string, which is true."""
    words = ["enable_deterministic_inference=False", "speculative_use_rejection_sampling=True"]
    assert parse_server_flags("SGLang", words).said == {"deterministic": False, "rejection_sampling": True}
    before_a_word = ["--enable-deterministic-inference", "speculative_num_steps=3"]
    assert parse_server_flags("SGLang", before_a_word).said == {"deterministic": True, "num_steps": 3}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--speculative-num-setps", ("--speculative-num-steps",)),
        ("--speculative_num_steps", ("--speculative-num-steps",)),
        ("--speculative-eagle-top-k", ("--speculative-eagle-topk",)),
        ("--speculatve-algorithm", ("--speculative-algorithm",)),
        ("--attention-backends", ("--attention-backend",)),
    ],
)
def test_a_misspelled_flag_is_named_with_the_one_that_was_meant(typed: str, meant: tuple[str, ...]) -> None:
    """Catches a typo that is passed over: the server refuses it, or runs without the setting."""
    flags = parse_server_flags("SGLang", [typed, "3"])
    assert [(flag.typed, flag.meant) for flag in flags.misspelled] == [(typed, meant)]
    assert flags.said == {}


def test_short_forms_are_read_as_argparse_reads_them() -> None:
    """Catches `--speculative-algo`, which everybody writes, refused; or an ambiguous short form taken for one flag."""
    assert parse_server_flags("SGLang", ["--speculative-algo", "EAGLE3"]).said == {"algorithm": "EAGLE3"}
    (ambiguous,) = parse_server_flags("SGLang", ["--speculative-draft", "folder"]).misspelled
    assert "--speculative-draft-model-path" in ambiguous.meant
    assert len(ambiguous.meant) > 2


def test_real_flags_that_change_nothing_are_no_misspellings() -> None:
    """Catches false alarms: a flag of the same family that is close to one of ours."""
    words = ["--speculative-draft-model-revision", "main", "--speculative-attention-mode", "decode"]
    flags = parse_server_flags("SGLang", [*words, "--mm-attention-backend", "fa3"])
    assert flags.misspelled == ()
    assert len(flags.unrelated) == 3


@pytest.mark.parametrize(
    ("engine", "words", "found"),
    [
        ("SGLang", ["--speculative-num-steps", "three"], "three"),
        ("SGLang", ["--speculative-num-steps"], "nothing after it"),
        ("SGLang", ["--speculative-eagle-topk", "--tp", "8"], "nothing after it"),
        ("SGLang", ["--speculative-accept-threshold-acc=high"], "high"),
        ("SGLang", ["--enable-deterministic-inference=maybe"], "maybe"),
        ("vLLM", ["-sc", "{method: eagle3}"], "{method: eagle3}"),
        ("vLLM", ["-sc", "[1]"], "[1]"),
        ("vLLM", ["--max-model-len", "long"], "long"),
        ("SGLang", ['--model-path "x'], '--model-path "x'),
        ("vLLM", ["-sc", '{"num_speculative_tokens": "x"}'], "x"),
    ],
)
def test_values_of_another_type_are_refused(engine: str, words: list[str], found: str) -> None:
    """Catches a traceback, or a setting that silently stays unset."""
    with pytest.raises(Eagle3RefError) as raised:
        parse_server_flags(engine, words)
    assert raised.value.found == found


def test_flags_of_engines_that_have_none_are_listed() -> None:
    """Catches a crash for an engine without a dialect."""
    flags = parse_server_flags("SafeAILab", ["--depth", "5"])
    assert flags.said == {}
    assert flags.unrelated == ("--depth 5",)

"""Recognizing a running server: its make, its model, its settings, before any prompt is sent."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from stub_server import MODEL, StubServer, recorded_prompts

from eagle3ref.config import TreeConfig
from eagle3ref.engines import engine_profile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.flags import parse_server_flags
from eagle3ref.servers.client import RequestSettings, collect
from eagle3ref.servers.client.stated import sglang_facts, vllm_facts

SETTINGS = RequestSettings(max_new_tokens=48)

pytestmark = pytest.mark.usefixtures("impatient_client")


def test_sglang_states_tree_and_settings_but_no_key(tmp_path: Path) -> None:
    """Would catch a tree taken from anywhere but the server, or its API key copied to disk."""
    with StubServer() as server:
        facts = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).server
    assert facts.tree == TreeConfig(3, 1, 4)
    assert (facts.engine_name, facts.model, facts.draft) == ("sglang==0.5.23", MODEL, "/models/draft")
    assert (facts.radix_cache, facts.cuda_graph, facts.overlap) == (False, False, True)
    assert engine_profile(str(facts.engine_name)).request_fields["rounds"] == "spec_verify_ct"
    flags = parse_server_flags("SGLang", facts.flags)
    assert (flags.algorithm, flags.num_steps, flags.attention_backend) == ("EAGLE3", 3, "torch_native")
    assert (flags.unknown, flags.misspelled, flags.unrelated) == ((), (), ())
    assert all("sk-secret" not in path.read_text() for path in (tmp_path / "journal").iterdir())


@pytest.mark.parametrize(
    ("info", "graphs"),
    [
        ({"disable_cuda_graph": True}, False),
        ({"disable_cuda_graph": False}, True),
        ({"disable_cuda_graph": False, "disable_decode_cuda_graph": True}, False),
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}}, False),
        ({"cuda_graph_config": {"decode": {"backend": "full"}}}, True),
        ({"disable_cuda_graph": False, "cuda_graph_backend_decode": "disabled"}, False),
        ({}, None),
    ],
)
def test_cuda_graphs_under_every_name(info: dict[str, object], graphs: bool | None) -> None:
    """Would catch "on" said of a server that has graphs off by its newer switch, or of one that says nothing."""
    assert sglang_facts({"model_path": MODEL, **info}).cuda_graph is graphs


def test_older_sglang_is_recognized_by_less(tmp_path: Path) -> None:
    """Would catch a client that needs the newest page: /get_model_info is all that a server of 2024 has."""
    with StubServer() as server:
        server.pages = lambda: {"/get_model_info": {"model_path": MODEL}}
        facts = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).server
    assert (facts.engine, facts.model, facts.tree) == ("sglang", MODEL, None)
    assert facts.engine_name == "sglang"


def test_vllm_in_development_mode_states_everything() -> None:
    """Would catch the configuration of ``/server_info`` read under other names than vLLM's."""
    config = {
        "speculative_config": {"method": "eagle3", "model": "/d", "num_speculative_tokens": 5},
        "model_config": {"dtype": "torch.bfloat16", "enforce_eager": True, "quantization": None},
        "cache_config": {"enable_prefix_caching": True, "block_size": 16},
        "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": 1},
    }
    facts = vllm_facts("0.32.0", {"id": "pair", "root": MODEL}, config, positions=0)
    assert (facts.tree, facts.algorithm, facts.draft) == (TreeConfig(5, 1, 6), "eagle3", "/d")
    assert (facts.dtype, facts.cuda_graph, facts.radix_cache, facts.tp) == ("bfloat16", False, True, 2)
    assert parse_server_flags("vLLM", facts.flags).algorithm == "eagle3"


def test_key_prefix_and_closing_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a key that is not sent or is written down, and paths in front of the endpoints that get lost."""
    monkeypatch.setenv("EAGLE3REF_API_KEY", " sk-of-mine\n")
    with StubServer("vllm", key="sk-of-mine", prefix="/models/a") as server:
        collection = collect(f"{server.url}/v1/", recorded_prompts(1), tmp_path / "journal", SETTINGS)
        with pytest.raises(Eagle3RefError, match="EAGLE3REF_API_KEY"):
            collect(server.url, recorded_prompts(1), tmp_path / "other", SETTINGS, api_key="wrong")
    assert collection.answered == 1
    assert not (tmp_path / "other").exists()
    assert all("sk-of-mine" not in path.read_text() for path in (tmp_path / "journal").iterdir())


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("model", "fits"),
    [(MODEL, True), ("target", True), ("/elsewhere/target/", True), ("pair", True), ("Kimi-K2.5", False)],
)
def test_wrong_model_is_refused_before_any_prompt(engine: str, model: str, fits: bool, tmp_path: Path) -> None:
    """Would catch prompts sent to another model, and a right one refused for the folder that it stands in."""
    with StubServer(engine) as server:
        if fits:
            assert collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS, model=model).answered == 1
            return
        with pytest.raises(Eagle3RefError, match=r"expected Kimi-K2\.5.*No prompt was sent"):
            collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS, model=model)
        assert server.received == []
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(
    ("wanted", "name", "same"),
    [
        ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5", True),
        ("moonshotai/Kimi-K2.5", "nvidia/Kimi-K2.5", False),
        ("Kimi-K2.5", "moonshotai/Kimi-K2.5", True),
        ("moonshotai/Kimi-K2.5", "/models/models--moonshotai--Kimi-K2.5/snapshots/0a1b2c", True),
        ("Kimi-K2.5", "Kimi-K2.6", False),
    ],
)
def test_names_of_models(wanted: str, name: str, same: bool, tmp_path: Path) -> None:
    """Would catch two publishers' models taken for one, and a hub snapshot not known by its repository."""
    with StubServer(info={"model_path": name, "served_model_name": name}) as server:
        if same:
            collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS, model=wanted)
        else:
            with pytest.raises(Eagle3RefError, match="for its model"):
                collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS, model=wanted)


def test_a_web_server_that_is_no_engine_is_one_sentence(tmp_path: Path) -> None:
    """Would catch the same page for people printed once for each path, or a word of asking before anything can be."""
    page = b"<!DOCTYPE HTML><html><body><h1>Error 404</h1><p>Nothing matches the given URI.</p></body></html>"

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    asked: list[object] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(Eagle3RefError) as refused:
            collect(address, recorded_prompts(1), tmp_path / "journal", SETTINGS, on_server=asked.append)
        server.shutdown()
    assert refused.value.found == "not an engine: 5 paths answered HTTP 404 with HTML"
    assert asked == []

"""Facts about a server from the JSON in which it states them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eagle3ref.explain.flag_names import SGLANG
from eagle3ref.servers.client.facts import ServerFacts

# Of SGLang's flags, the two that name folders: these are the caller's own to give.
_FOLDERS = ("draft_path", "target_path")
_VLLM_CONFIGS = ("speculative", "model", "cache", "parallel", "scheduler")


def sglang_facts(info: Mapping[str, Any]) -> ServerFacts:
    """From ``/server_info``, or from the little that ``/get_model_info`` of older servers says."""
    read = _Reader(info)
    speculates = read.text("speculative_algorithm") is not None
    return ServerFacts(
        engine="sglang",
        endpoint="/generate",
        version=read.text("version", "sglang_version"),
        model=read.text("model_path"),
        served_model_name=read.text("served_model_name"),
        draft=read.text("speculative_draft_model_path", "speculative_draft_model"),
        algorithm=read.text("speculative_algorithm"),
        num_steps=read.count("speculative_num_steps") if speculates else None,
        topk=read.count("speculative_eagle_topk") if speculates else None,
        num_draft_tokens=read.count("speculative_num_draft_tokens") if speculates else None,
        attention_backend=read.text("decode_attention_backend", "attention_backend"),
        draft_attention_backend=read.text("speculative_draft_attention_backend"),
        page_size=read.count("page_size"),
        dtype=read.text("dtype"),
        kv_cache_dtype=read.text("kv_cache_dtype"),
        quantization=read.text("quantization"),
        radix_cache=read.unless("disable_radix_cache"),
        cuda_graph=_sglang_graphs(info, read),
        overlap=read.unless("disable_overlap_schedule"),
        tp=read.count("tp_size"),
        dp=read.count("dp_size"),
        dp_attention=read.flag("enable_dp_attention"),
        disaggregation=read.text("disaggregation_mode"),
        accept_threshold_single=read.number("speculative_accept_threshold_single"),
        accept_threshold_acc=read.number("speculative_accept_threshold_acc"),
        rejection_sampling=read.flag("speculative_use_rejection_sampling"),
        block_verification=read.flag("speculative_use_block_verification"),
        adaptive=read.flag("speculative_adaptive"),
        flags=_sglang_flags(info),
        raw={name: value for name, value in info.items() if name != "internal_states"},  # which move
    )


def vllm_facts(version: str | None, model: Mapping[str, Any], config: Mapping[str, Any], positions: int) -> ServerFacts:
    """From ``/version``, an entry of ``/v1/models``, ``vllm_config`` of ``/server_info``, and ``/metrics``.

    Args:
        version: of the engine.
        model: the entry.
        config: empty unless the server runs with ``VLLM_SERVER_DEV_MODE=1``.
        positions: draft tokens that the counters tell apart; 0 where there are none, or speculation is off.
    """
    read, of = _Reader(model), {name: _Reader(_object(config, f"{name}_config")) for name in _VLLM_CONFIGS}
    drafted = of["speculative"].count("num_speculative_tokens") or positions or None
    return ServerFacts(
        engine="vllm",
        version=version,
        model=read.text("root") or read.text("id"),
        served_model_name=read.text("id"),
        draft=of["speculative"].text("model"),
        algorithm=of["speculative"].text("method"),
        num_steps=drafted,
        topk=1 if drafted else None,
        num_draft_tokens=drafted + 1 if drafted else None,
        dtype=_last_word(of["model"].text("dtype")),
        kv_cache_dtype=of["cache"].text("cache_dtype"),
        quantization=of["model"].text("quantization"),
        page_size=of["cache"].count("block_size"),
        radix_cache=of["cache"].flag("enable_prefix_caching"),
        cuda_graph=of["model"].unless("enforce_eager"),
        overlap=of["scheduler"].flag("async_scheduling"),
        tp=of["parallel"].count("tensor_parallel_size"),
        dp=of["parallel"].count("data_parallel_size"),
        flags=_vllm_flags(of["speculative"].text("method"), drafted),
        raw={"model": dict(model), **({"vllm_config": dict(config)} if config else {})},
    )


class _Reader:
    """Values of an object from outside, of the right type or None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, *names: str) -> str | None:
        return next((value for name in names if isinstance(value := self._values.get(name), str) and value), None)

    def count(self, name: str) -> int | None:
        value = self._values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        value = self._values.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        value = self._values.get(name)
        return value if isinstance(value, bool) else None

    def unless(self, name: str) -> bool | None:
        """The opposite of a flag that switches something off."""
        value = self.flag(name)
        return None if value is None else not value


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _last_word(dtype: str | None) -> str | None:
    return None if dtype is None else dtype.rpartition(".")[2]


def _sglang_graphs(info: Mapping[str, Any], read: _Reader) -> bool | None:
    """Whether decoding runs as graphs: one switch until 2026, then one for each phase."""
    switches = [read.flag("disable_cuda_graph"), read.flag("disable_decode_cuda_graph")]
    backend = _object(_object(info, "cuda_graph_config"), "decode").get("backend")
    if True in switches or "disabled" in (backend, info.get("cuda_graph_backend_decode")):
        return False
    return True if False in switches or backend else None


def _sglang_flags(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that ``/server_info`` lists, back as flags; it names them as the command line does."""
    flags: list[str] = []
    for flag in SGLANG.flags:
        name = flag.spellings[0]
        value = info.get(name.removeprefix("--").replace("-", "_"))
        if flag.setting in _FOLDERS or value is None or value is False or isinstance(value, (list, dict)):
            continue
        flags += [name] if flag.kind == "switch" else [name, str(value)]
    return tuple(flags)


def _vllm_flags(method: str | None, drafted: int | None) -> tuple[str, ...]:
    if drafted is None:
        return ()
    known = {"method": method} if method else {}
    return ("--speculative-config", json.dumps({**known, "num_speculative_tokens": drafted}))

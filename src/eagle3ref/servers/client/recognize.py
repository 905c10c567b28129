"""Which server answers, and whether it is the one that was meant, before any prompt is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.http import Answer, Connection, Failure, json_object
from eagle3ref.servers.client.stated import sglang_facts, vllm_facts

# SGLang's own pages, the newest name first. /get_model_info is all that servers of 2024 have.
_SGLANG_INFO = ("/server_info", "/get_server_info", "/model_info", "/get_model_info")
_SECRET = re.compile(r"(api_?key|password|secret|token)$|^(launch_command|env(ironment)?|.*_vars)$", re.IGNORECASE)
_POSITION = re.compile(r'^vllm:spec_decode_num_accepted_tokens_per_pos\w*\{.*?\bposition="(\d+)"', re.MULTILINE)

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_SNAPSHOT = re.compile(r"models--[^/]+--([^/]+)/snapshots/")


async def recognize(connection: Connection, model: str | None = None) -> ServerFacts:
    """Ask a server what it is.

    Args:
        connection: to it.
        model: name or path that the target must have; the last part of a path will do. None takes any.

    Raises:
        Eagle3RefError: no server there, none of a known make, a refused key, or another model.
    """
    failures: dict[str, str] = {}
    info = await _sglang_info(connection, failures)
    if info is not None:
        facts = sglang_facts(info)
        if model is not None and not any(_same_model(model, name) for name in (facts.model, facts.served_model_name)):
            raise _wrong_model(connection, model, [facts.model or "", facts.served_model_name or ""])
        return facts
    models = await _object(connection, "/v1/models", failures)
    if models is None:
        raise _unknown(connection, failures)
    return await _openai_facts(connection, _chosen(connection, models, model), failures)


def without_secrets(values: Any) -> Any:
    """A JSON value without the keys, passwords, environments and command lines in it: SGLang lists its API keys."""
    if isinstance(values, Mapping):
        return {name: without_secrets(value) for name, value in values.items() if not _SECRET.search(str(name))}
    if isinstance(values, list):
        return [without_secrets(value) for value in values]
    return values


async def _sglang_info(connection: Connection, failures: dict[str, str]) -> dict[str, Any] | None:
    for path in _SGLANG_INFO:
        info = await _object(connection, path, failures)
        if info is not None and "model_path" in info:
            return info
    return None


async def _openai_facts(connection: Connection, model: Mapping[str, Any], failures: dict[str, str]) -> ServerFacts:
    version = (await _object(connection, "/version", failures) or {}).get("version")
    version = version if isinstance(version, str) else None
    if model.get("owned_by") == "vllm":
        # The whole configuration is shown in development mode only; without it the counters tell the number of drafts.
        info = await _object(connection, "/server_info?config_format=json", failures) or {}
        config = info.get("vllm_config")
        metrics = await connection.get("/metrics")
        text = metrics.text if isinstance(metrics, Answer) else ""
        positions = len({int(position) for position in _POSITION.findall(text)})
        return vllm_facts(version, model, config if isinstance(config, dict) else {}, positions)
    name = model.get("root") or model.get("id")
    return ServerFacts(
        engine="sglang" if model.get("owned_by") == "sglang" else "openai",  # behind a gateway
        version=version,
        model=str(name) if name else None,
        served_model_name=str(model["id"]) if model.get("id") else None,
        raw={"model": dict(model)},
    )


async def _object(connection: Connection, path: str, failures: dict[str, str]) -> dict[str, Any] | None:
    """The JSON object at a path, cleared of secrets; None, and why in ``failures``, if there is none.

    Raises:
        Eagle3RefError: nothing answers there, or the key is refused: no other path would do better.
    """
    answer = await connection.get(path)
    found = answer if isinstance(answer, Failure) else json_object(answer)
    if not isinstance(found, Failure):
        cleared: dict[str, Any] = without_secrets(found)
        return cleared
    failures[path] = found.why
    doing = f"asking the server {connection.url} what it is"
    if found.status is None:
        raise Eagle3RefError(
            doing, found=found.why, expected="a running server", action="Check the address, and that the server is up."
        )
    if found.status in (401, 403):
        raise Eagle3RefError(
            doing,
            found=found.why,
            expected="a key that the server takes",
            action="Set EAGLE3REF_API_KEY to the key that the server was started with.",
        )
    return None


def _chosen(connection: Connection, models: Mapping[str, Any], model: str | None) -> Mapping[str, Any]:
    """The entry of ``/v1/models`` that is meant: the first if no name was given."""
    listed = models.get("data")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if model is None or any(_same_model(model, entry.get(key)) for key in ("id", "root")):
            return entry
    raise _wrong_model(connection, model or "any", [str(entry.get("id")) for entry in entries])


def _same_model(wanted: str, name: Any) -> bool:
    """Whether a name or path is the one meant. Two hub names must be equal; a folder is known by its last part."""
    if not isinstance(name, str):
        return False
    if all(_HUB_NAME.fullmatch(text) for text in (wanted, name)):
        return wanted == name
    return _folder_name(wanted) == _folder_name(name)


def _folder_name(path: str) -> str:
    """The last part; of a snapshot in the hub's cache, the repository's name."""
    snapshot = _SNAPSHOT.search(path)
    return snapshot[1] if snapshot else path.rstrip("/").rpartition("/")[2]


def _wrong_model(connection: Connection, model: str, served: list[str]) -> Eagle3RefError:
    names = ", ".join(dict.fromkeys(name for name in served if name)) or "no model"
    return Eagle3RefError(
        f"asking the server {connection.url} for its model",
        found=f"{names}",
        expected=model,
        action="Point to the server of that model, or correct the model's name. No prompt was sent.",
    )


def _unknown(connection: Connection, failures: Mapping[str, str]) -> Eagle3RefError:
    return Eagle3RefError(
        f"asking the server {connection.url} what it is",
        found=_all_alike(failures) or "; ".join(f"{path}: {why}" for path, why in failures.items()),
        expected="SGLang's /server_info, or the /v1/models of an OpenAI-compatible server",
        action="Check the address, and a path in front of the endpoints if there is one.",
    )


def _all_alike(failures: Mapping[str, str]) -> str | None:
    """One sentence where every path said the same, as a web server that is no engine does; None where they differ."""
    reasons = set(failures.values())
    if len(reasons) != 1:
        return None
    return f"not an engine: {len(failures)} paths answered {reasons.pop()}"

"""What the server says of itself before and after the requests: its counters, its lifetime averages, its load."""

from __future__ import annotations

import asyncio
import json

from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.http import Answer, Connection, json_object
from eagle3ref.servers.client.recognize import without_secrets

METRICS = "/metrics"
_SGLANG_PAGES = ("/server_info", "/get_server_info", "/v1/loads")
_SETTLING, _TRIES = 0.3, 10  # seconds between looks at the counters, and looks at most
_PREFIXES = ("vllm:", "sglang:")


async def fetch_pages(connection: Connection, facts: ServerFacts) -> dict[str, str]:
    """Its pages by path, those that it has. Without them the answers still count."""
    pages: dict[str, str] = {}
    for path in _SGLANG_PAGES if facts.engine == "sglang" else ():
        if path == "/get_server_info" and "/server_info" in pages:
            continue  # the same under its older name
        answer = await connection.get(path)
        value = json_object(answer) if isinstance(answer, Answer) else None
        if isinstance(value, dict):
            pages[path] = json.dumps(without_secrets(value))
    metrics = await _metrics(connection)
    return {**pages, METRICS: metrics} if metrics else pages


async def settled_pages(connection: Connection, facts: ServerFacts) -> dict[str, str]:
    """The pages after the last answer, when the counters are at rest: an answer may leave before it is counted."""
    before = await _metrics(connection)
    for _ in range(_TRIES if before else 0):
        await asyncio.sleep(_SETTLING)
        now = await _metrics(connection)
        if now == before:
            break
        before = now
    return await fetch_pages(connection, facts)


async def _metrics(connection: Connection) -> str:
    """The engine's own series, histograms left out: they are long and say nothing here."""
    answer = await connection.get(METRICS)
    if not isinstance(answer, Answer):
        return ""
    kept = [
        line
        for line in answer.text.splitlines()
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(_PREFIXES) and "_bucket{" not in line
    ]
    return "\n".join(kept) + "\n" if kept else ""

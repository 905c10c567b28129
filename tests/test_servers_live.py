"""The real SGLang and vLLM, started here as HTTP servers: asked, judged and explained from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from engines.drafts import TARGET
from engines.environment import python_of
from engines.http_plan import SERVERS, Server
from engines.http_server import serving
from engines.pairs import prompts_of
from engines.plan import POINTS
from typer.testing import CliRunner

from eagle3ref.cli import app

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning"),
]

MAX_NEW_TOKENS = 32
WIRING = ("--capture-points", ",".join(map(str, POINTS)), "--dtype", "float32", "--json")


def run(*words: object) -> tuple[int, dict[str, Any]]:
    """Exit status and document of ``eagle3ref`` with these words."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code in (0, 1), result.output + result.stderr
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("server", [s for s in SERVERS if s.temperature == 0], ids=str)
def test_a_running_server_is_judged_round_by_round_and_explained(server: Server, tmp_path: Path) -> None:
    """Catches a client that a real server does not understand, and a verdict that recordings alone make right."""
    prompts, trace, journal = (tmp_path / name for name in ("prompts.jsonl", "trace", "journal"))
    sent = prompts_of(server.pair)[: server.num_prompts]
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "tokens": ids}) + "\n" for i, ids in enumerate(sent)))
    python = python_of(server.engine, Path(os.environ["EAGLE3REF_TEST_ENGINES"]).resolve())
    with serving(server, python, tmp_path / "server") as running:
        draft = tmp_path / "server" / "draft"
        asking = ("--server", running.url, "--journal", journal, "--prompts", prompts, "--target", TARGET)
        how = ("--max-new-tokens", MAX_NEW_TOKENS, "--concurrency", server.concurrency)
        status, verdict = run("crosscheck", trace, draft, *asking, *how, *WIRING)
    best = verdict["comparisons"][verdict["decides"]]
    assert (status, verdict["verdict"]) == ((1, "differs") if server.fault else (0, "agrees"))
    lists_rounds = server.engine == "sglang" or bool(server.flags)
    assert best["kind"] == ("same requests round by round" if lists_rounds else "same requests in sum")
    assert verdict["requests"]["same answer"] == len(sent)
    status, diagnosis = run("diagnose", trace, draft, journal, "--target", TARGET, *WIRING)
    assert status == (1 if server.fault else 0)
    # What the engine itself makes of the draft's config.json is a hypothesis too: of wrong ids the very same.
    expected = {server.fault, "as-engine-reads"} if server.fault else {"right"}
    assert expected & set(diagnosis["leading"])

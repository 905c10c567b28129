"""The two pairs that engines serve: the small Llama-style one, and the embedded Kimi-shaped one."""

from __future__ import annotations

import json
from pathlib import Path

from engines import kimi
from engines.drafts import GOLDEN, TARGET, write_draft
from engines.plan import Pair, Run


def prompts_of(pair: Pair) -> list[list[int]]:
    """Token ids of all prompts."""
    prompts: list[list[int]] = json.loads((GOLDEN / "prompts.json").read_text())
    return prompts if pair == "llama" else kimi.prompts(8)


def write_pair(run: Run, folder: Path) -> tuple[Path, Path]:
    """Folders of the run's target and draft; what is not committed as it is served is written into ``folder``."""
    if run.pair == "kimi":
        return kimi.write_target(folder / "target"), kimi.write_draft(run.ids, folder / "draft")
    return TARGET, write_draft(run.ids, run.variant, folder / "draft")

"""A record of what verification decided."""

import json
import os
from pathlib import Path

from torch import Tensor

ROUNDS_FILE = "EAGLE3REF_ROUNDS"  # names the file to which each verification is appended, one JSON list a line


def record(accepted: Tensor, tokens: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Append one round of each request of the batch: ``[[accepted drafts, tokens, next_token, next_sibling], ...]``."""
    if path := os.environ.get(ROUNDS_FILE):
        columns = (column.tolist() for column in (accepted, tokens, next_token, next_sibling))
        with Path(path).open("a") as file:
            file.write(json.dumps(list(zip(*columns, strict=True))) + "\n")

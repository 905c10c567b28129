"""A record of what verification decided."""

import json
import os
from pathlib import Path

from torch import Tensor

ROUNDS_FILE = "EAGLE3REF_ROUNDS"  # names the file to which each round is appended, one JSON list a line


def record(accepted: Tensor, tokens: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Append one round of each request: ``[accepted drafts, tokens, next_token, next_sibling]``."""
    if path := os.environ.get(ROUNDS_FILE):
        rows = zip(*(column.tolist() for column in (accepted, tokens, next_token, next_sibling)), strict=True)
        with Path(path).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

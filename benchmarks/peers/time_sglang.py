"""Times SGLang on a job of tests/engines, in its environment: ``time_sglang.py JOB.json RESULT.json TIMES.json``.

The seconds are those of each ``Engine.generate``, so neither start-up nor loading is in them. tests/engines and its
stand-in operators come first in PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import run_sglang  # SGLang starts its processes by importing this file again, and this is what they need

if __name__ == "__main__":
    from sglang.srt.entrypoints.engine import Engine

    taken: list[float] = []
    generate = Engine.generate

    def timed(self: Engine, *arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        outputs = generate(self, *arguments, **keywords)
        taken.append(time.perf_counter() - started)
        return outputs

    Engine.generate = timed
    began = time.perf_counter()
    run_sglang.main(*sys.argv[1:3])
    startup = time.perf_counter() - began - sum(taken)
    Path(sys.argv[3]).write_text(json.dumps({"seconds": taken, "startup_s": startup}))

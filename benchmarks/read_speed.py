"""Lines per second of `eagle3ref read` on a generated server log, against Python's bare iteration over the same lines.

    python benchmarks/read_speed.py --megabytes 200

One line in ten is a decode line, two are prefills, the others are of no interest. Seconds are of the processor, so a
busy machine changes little; every decode line must be read.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from eagle3ref.servers import Evidence, Reading, read_file

RESULT = Path(__file__).parent / "results" / "read_speed.json"
NOISE = (
    '[{time}] INFO:     127.0.0.1:5123 - "POST /generate HTTP/1.1" 200 OK',
    "{time} INFO uvicorn.access a request went through the handler and took 3.2 ms to finish in the end",
    "[{time} TP0] max_total_num_tokens=831872, chunked_prefill_size=8192, max_running_requests=2048",
    "[{time} TP0] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 512, token usage: 0.03, #running-req: 3",
)
DECODE = (
    "[{time} TP0] Decode batch, #running-req: 4, #token: {tokens}, token usage: 0.00, accept len: {length:.2f}, "
    "accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: 0, "
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        num_lines, num_decode = generate(path, arguments.megabytes * 1_000_000)
        bare = seconds_of(lambda: sum(1 for _ in path.open(encoding="utf-8")))
        statements = seconds_of(lambda: sum(1 for _ in read_file(path)))
        reading = seconds_of(lambda: Evidence.read(path))
        read = sum(isinstance(statement, Reading) for statement in read_file(path))
    if read != num_decode:
        raise SystemExit(f"{num_decode:,} decode lines were written and {read:,} read")
    result = {
        "megabytes": arguments.megabytes,
        "lines": num_lines,
        "decode_lines": num_decode,
        "bare_iteration_seconds": round(bare, 2),
        "read_seconds": round(statements, 2),
        "evidence_seconds": round(reading, 2),
        "lines_per_second": round(num_lines / statements),
        "megabytes_per_second": round(arguments.megabytes / statements, 1),
        "times_bare_iteration": round(statements / bare, 1),
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def generate(path: Path, num_bytes: int) -> tuple[int, int]:
    """Lines, and decode lines among them, that were written."""
    written, blocks, time_ = 0, 0, datetime(2026, 6, 1)
    with path.open("w", encoding="utf-8") as file:
        while written < num_bytes:
            time_ += timedelta(seconds=1)
            length = 2 + (blocks * 7919 % 1000) / 1000
            values = {"time": f"{time_:%Y-%m-%d %H:%M:%S}", "tokens": blocks % 9973, "length": length}
            lines = [NOISE[i % 4].format(**values) for i in range(9)]
            lines.append(DECODE.format(**values, rate=(length - 1) / 3, speed=100 + blocks % 4999 / 7))
            written += file.write("".join(f"{line}\n" for line in lines))
            blocks += 1
    return 10 * blocks, blocks


def seconds_of(work: object) -> float:
    assert callable(work)
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    main()

"""Every kernel on one GPU: right against fp64 at Kimi-K2.5's sizes, bit for bit under CUDA graphs, and how fast.

    python benchmarks/device_check.py               under five minutes
    python benchmarks/device_check.py --rehearse    every line on the CPU, at tiny sizes; no times, nothing is kept

The first writes benchmarks/results/device_check_<device>.json. Each part runs in a process of its own, so a kernel that
fails or hangs is reported and the others go on; results are on disk after every part. Ends with status 1 if a check
failed or was not reached. Goals that are missed are printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from device import PARTS


def main() -> int:
    arguments = parse_arguments()
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so it is set before the imports
        os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from device.run import check

    if not arguments.rehearse and not torch.cuda.is_available():
        print("checking the kernels: found no CUDA device; expected one. Use --rehearse on the CPU.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) if arguments.rehearse else Path(__file__).parent / "results"
        return check(arguments.only, arguments.seconds, Path(scratch), results, rehearsed=arguments.rehearse)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU with Triton's interpreter, at tiny sizes")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts (all)")
    parser.add_argument("--seconds", type=float, default=280.0, help="for all parts together (280)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

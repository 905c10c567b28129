"""Compiles Triton kernels for an H100 or H200 without one, and says what they use.

``compiled`` runs lines of Python in a process of its own, where every launch of a kernel is a compilation for sm_90
instead, by way of the same wrappers, configurations and argument types as on a device. Tensors come from ``meta``: they
have a shape, and no memory. A kernel that does not compile, does not fit the machine or spills registers is found so;
whether it is right and fast is not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SHARED_BYTES_PER_PROGRAM = 227 * 1024
PARKED_BYTES = 16  # a few registers put away outside of the loops cost nothing; a loop that spills needs more
SOURCE = Path(__file__).resolve().parent.parent / "src"


@dataclass(frozen=True)
class Usage:
    """What one compiled kernel takes of a multiprocessor.

    Args:
        kernel: its name.
        registers: of a thread.
        spilled_bytes: of a thread, in local memory: its stack and its spilled registers.
        shared_bytes: of a program.
        num_warps: of a program.
        opcodes: how often each instruction stands in the machine code, by its name without modifiers.
    """

    kernel: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    num_warps: int
    opcodes: dict[str, int]

    @property
    def fits(self) -> bool:
        return self.spilled_bytes <= PARKED_BYTES and self.shared_bytes <= SHARED_BYTES_PER_PROGRAM


def compiled(lines: str) -> list[Usage]:
    """One ``Usage`` for each kernel launch of the lines, in their order.

    Args:
        lines: Python, with ``torch`` and ``meta(*shape, dtype=torch.bfloat16)`` at hand.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Usage(**usage) for usage in json.loads(done.stdout.splitlines()[-1])]


def compile_instead_of_launching() -> list[Any]:
    """From here on a launch only compiles; the compiled kernels are in the list, in the order of the launches."""
    import triton
    from triton.backends.compiler import GPUTarget

    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    )
    triton.runtime.driver.set_active(driver)
    compile_or_launch, kernels = triton.runtime.JITFunction.run, []

    def compile_only(*arguments: Any, **options: Any) -> Any:
        kernels.append(compile_or_launch(*arguments, **{**options, "warmup": True}))
        return kernels[-1]

    triton.runtime.JITFunction.run = compile_only
    return kernels


def usage_of(kernel: Any) -> Usage:
    """Read off the machine code, with the tool that Triton brings."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", printed)}
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", printed)
    return Usage(
        kernel.metadata.name,
        numbers["REG"],
        numbers["STACK"] + numbers["LOCAL"],
        kernel.metadata.shared,
        kernel.metadata.num_warps,
        dict(Counter(instructions)),
    )


def main() -> None:
    import torch

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    kernels = compile_instead_of_launching()
    exec(sys.stdin.read(), {"torch": torch, "meta": meta})
    print(json.dumps([asdict(usage_of(kernel)) for kernel in kernels]))


if __name__ == "__main__":
    main()

"""Products with INT4 weights: one expert of the target, and the experts of one rank."""

from __future__ import annotations

import torch

from device.calls import Call, Timed, check_case, rival_cases, time_case
from device.recorder import Case
from device.setting import Setting
from eagle3ref.kernels.int4 import int4_configs
from eagle3ref.target.int4 import GROUP_SIZE

_COMPILED_ROWS = 16
_BYTES = 1 / 2 + 2 / GROUP_SIZE  # of a weight: a nibble, and its share of a bf16 scale


def cases(setting: Setting) -> list[Case]:
    """Checks of both products of an expert in every dtype, then times."""
    sizes = setting.sizes
    up, down = (sizes.expert, sizes.hidden), (sizes.hidden, sizes.expert)
    checks = [
        check_case(f"int4 {rows} x {shape}, {dtype}", lambda r=rows, s=shape, d=dtype: product(setting, r, s, d))
        for dtype in setting.dtypes
        for shape in (up, down)
        for rows in sizes.checked_rows
    ]
    checks += [
        check_case(f"int4 grouped {rows} rows, {dtype}", lambda r=rows, d=dtype: grouped(setting, r, d))
        for dtype in setting.dtypes
        for rows in sizes.checked_rows
    ]
    times = [time_case(setting, one) for one in timed(setting)]
    return [*checks, *times, *(case for one in timed(setting) for case in rival_cases(setting, one))]


def timed(setting: Setting) -> list[Timed]:
    """The up projection of one expert for every number of rows, and of all experts for the largest."""
    rows, columns, width = setting.sizes.expert, setting.sizes.hidden, setting.served.itemsize
    single = [
        Timed(
            f"int4 {count} rows",
            lambda count=count: product(setting, count, (rows, columns), setting.served),
            num_bytes=int(rows * columns * _BYTES) + width * count * (rows + columns),
            flops=2 * count * rows * columns,
            compiled=count == _COMPILED_ROWS,
            rivals=tuple(int4_configs(count, rows, columns)[1:]),
        )
        for count in setting.sizes.timed_rows
    ]
    experts, count = setting.sizes.num_experts, setting.sizes.timed_rows[-1]
    together = Timed(
        f"int4 grouped {count} rows over {experts} experts",
        lambda: grouped(setting, count, setting.served),
        num_bytes=int(experts * rows * columns * _BYTES) + width * count * (rows + columns),
        flops=2 * count * rows * columns,
        rivals=tuple(int4_configs(count, rows, columns, num_experts=experts)[1:]),
    )
    return [*single, together]


def product(setting: Setting, rows: int, shape: tuple[int, int], dtype: torch.dtype) -> Call:
    """Rows times one weight of random nibbles and scales of about the size of a real one."""
    return Call("int4_matmul", (setting.random(rows, shape[1], dtype=dtype), *random_weight(setting, shape)), kept=(2,))


def grouped(setting: Setting, rows: int, dtype: torch.dtype) -> Call:
    """Rows that chance has given to experts; some experts may have none."""
    sizes = setting.sizes
    x = setting.random(rows, sizes.hidden, dtype=dtype)
    expert = setting.integers(sizes.num_experts - 1, rows)
    counts = torch.bincount(expert, minlength=sizes.num_experts)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    weight = random_weight(setting, (sizes.num_experts, sizes.expert, sizes.hidden))
    return Call("int4_grouped_matmul", (x, offsets, *weight), kept=(3,))


def random_weight(setting: Setting, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 words and bf16 scales of a weight."""
    *lead, columns = shape
    words = torch.randint(-(2**31), 2**31, (*lead, columns // 8), device=setting.device).to(torch.int32)
    scale = (0.5 + torch.rand(*lead, columns // GROUP_SIZE, device=setting.device)) * columns**-0.5 / 4
    return words, scale.to(torch.bfloat16)

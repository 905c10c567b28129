"""Fusion: three states of 7168 times the fc of [7168, 21504]."""

from __future__ import annotations

import torch

from device.calls import Call, Timed, check_case, rival_cases, time_case
from device.recorder import Case
from device.setting import Setting
from eagle3ref.kernels.fusion import fusion_configs

CHUNKS = 3
_MEMORY_BOUND_ROWS = 16  # so many rows and fewer are to run at the rate of a copy
_GOAL = 0.85


def cases(setting: Setting) -> list[Case]:
    """Checks in every dtype, with and without norms, then times."""
    checks = [
        check_case(f"fuse {rows} rows, {norm}, {dtype}", lambda r=rows, n=norm, d=dtype: fusion(setting, r, d, n))
        for dtype in setting.dtypes
        for norm in ("no norm", "fc_norm", "norm_before_fc")
        for rows in (setting.sizes.checked_rows if norm == "no norm" else setting.sizes.checked_rows[1:2])
    ]
    times = [time_case(setting, one) for one in timed(setting)]
    return [*checks, *times, *(case for one in timed(setting) for case in rival_cases(setting, one))]


def timed(setting: Setting) -> list[Timed]:
    """Every number of rows without norms, and 16 rows with them."""
    kinds = [(rows, "no norm") for rows in setting.sizes.timed_rows]
    return [_timed(setting, rows, norm) for rows, norm in [*kinds, (16, "fc_norm")]]


def fusion(setting: Setting, rows: int, dtype: torch.dtype, norm: str) -> Call:
    """A fusion of random states, whose channels differ in size as those of a target do."""
    hidden, fused = setting.sizes.hidden, CHUNKS * setting.sizes.hidden
    spread = setting.random(hidden, dtype=torch.float32).exp()
    states = [(setting.random(rows, hidden, dtype=torch.float32) * spread).to(dtype) for _ in range(CHUNKS)]
    weight = setting.random(hidden, fused, dtype=dtype, scale=fused**-0.5)
    norms = [1 + 0.3 * setting.random(hidden, dtype=dtype) for _ in range(CHUNKS)]
    keywords = {
        "no norm": {},
        "fc_norm": {"norm_weights": norms},
        "norm_before_fc": {"input_norm_weight": torch.cat(norms)},
    }
    return Call("fuse", (states, weight), keywords[norm])


def _timed(setting: Setting, rows: int, norm: str) -> Timed:
    hidden, fused = setting.sizes.hidden, CHUNKS * setting.sizes.hidden
    width = setting.served.itemsize
    return Timed(
        f"fuse {rows} rows" + ("" if norm == "no norm" else f", {norm}"),
        lambda: fusion(setting, rows, setting.served, norm),
        num_bytes=width * (hidden * fused + rows * (fused + hidden)),
        flops=2 * rows * hidden * fused,
        goal=_GOAL if rows <= _MEMORY_BOUND_ROWS else None,
        compiled=rows == _MEMORY_BOUND_ROWS and norm == "no norm",
        rivals=tuple(fusion_configs(rows, hidden, hidden, CHUNKS, setting.served)[1:]) if norm == "no norm" else (),
    )

"""The eager operations under torch.compile, last of all: each takes long to compile, and no check waits for it."""

from __future__ import annotations

from device import attention, fusion, int4
from device.calls import compiled_case
from device.recorder import Case
from device.setting import Setting


def cases(setting: Setting) -> list[Case]:
    """One size of each operation."""
    everything = [*fusion.timed(setting), *int4.timed(setting), *attention.timed(setting)]
    chosen = [one for one in everything if one.compiled or setting.rehearsed]
    return [compiled_case(setting, one) for one in (chosen[:1] if setting.rehearsed else chosen)]

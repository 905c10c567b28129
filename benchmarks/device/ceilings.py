"""What the device can do at best: copy memory, and multiply matrices of random numbers."""

from __future__ import annotations

import torch

from device.clock import cold_ms
from device.recorder import Case, Recorder
from device.setting import Setting


def cases(setting: Setting) -> list[Case]:
    """The device's name, and both ceilings."""
    return [
        Case("the device", lambda recorder: describe(setting, recorder)),
        Case("copy", lambda recorder: copy(setting, recorder), is_check=False),
        Case("matmul", lambda recorder: matmul(setting, recorder), is_check=False),
    ]


def describe(setting: Setting, recorder: Recorder) -> None:
    """Name and memory; of a rehearsal, that it is one."""
    if setting.rehearsed:
        recorder.write("device", name="no device: a rehearsal on the CPU")
        return
    properties = torch.cuda.get_device_properties(setting.device)
    capability = f"{properties.major}.{properties.minor}"
    memory = round(properties.total_memory / 2**30)
    recorder.write("device", name=properties.name, capability=capability, memory_gib=memory)


def copy(setting: Setting, recorder: Recorder) -> None:
    """A large copy within the device's memory; bytes read and bytes written both count."""
    size = setting.sizes.copied_bytes
    source = torch.empty(size, dtype=torch.uint8, device=setting.device).random_()
    target = torch.empty_like(source)
    milliseconds = cold_ms(setting, lambda: target.copy_(source))
    recorder.write("ceiling", name="copy", ms=milliseconds, bytes=2 * size)


def matmul(setting: Setting, recorder: Recorder) -> None:
    """A large square product in the served dtype, of random numbers: zeros would draw less power and run faster."""
    size = setting.sizes.matmul
    left, right = (setting.random(size, size) for _ in range(2))
    milliseconds = cold_ms(setting, lambda: left @ right)
    recorder.write("ceiling", name="matmul", ms=milliseconds, flops=2 * size**3)

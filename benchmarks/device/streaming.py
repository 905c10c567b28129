"""A checkpoint streamed to the device: each layer against fp64, and bit for bit what the resident model gives."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
from real_layer import checkpoint, stream
from real_layer.judge import check_rows
from safetensors.torch import save_file

from device.recorder import Case, Recorder
from device.setting import Setting
from eagle3ref.target.kimi_k25 import KimiK25Target

_TOKENS = (8, 600)  # few, for which only the experts that are needed are read, and many
_ROWS = 3  # held against fp64
# Kimi-K2.5's widths, and few experts; or all of it tiny.
_KIMI = {"n_routed_experts": 24, "intermediate_size": 2048}
_TINY = {
    "n_routed_experts": 24,
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 32,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "vocab_size": 320,
}


def cases(setting: Setting) -> list[Case]:
    """In every dtype, few tokens and many. Nothing is timed here: bench_real_layer.py does that."""
    return [
        Case(f"streamed layers, {count} tokens, {dtype}", partial(_check, setting, count, dtype))
        for dtype in setting.dtypes
        for count in _TOKENS
    ]


def _check(setting: Setting, count: int, dtype: torch.dtype, recorder: Recorder) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint.write(Path(scratch) / "checkpoint", **(_TINY if setting.rehearsed else _KIMI))
        name = str(dtype).removeprefix("torch.")
        asked = stream.Setting(count, name, setting.device, None, "byte view", torch.get_num_threads())
        _, streamed = stream.run(folder, asked)
        resident = KimiK25Target.from_folder(folder, device=setting.device, dtype=dtype)
        same = all(torch.equal(streamed[key], value) for key, value in stream.kept_streams(resident, count).items())
        recorder.check(f"streamed = resident, {count} tokens, {dtype}", same)
        save_file(streamed, Path(scratch) / "streams.safetensors")
        num_layers = resident.config.num_layers
        for found in check_rows(folder, Path(scratch) / "streams.safetensors", dtype, num_layers, _ROWS):
            right = found.pop("right")
            recorder.check(f"streamed layer {found['layer']}, {count} tokens, {dtype}", right, **found)

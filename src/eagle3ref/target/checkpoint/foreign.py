"""Quantizations that are not read, recognized by the tensors they leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint.header import StoredTensor
from eagle3ref.target.checkpoint.wording import first_few

_BESIDE_FP8 = "weight_scale of an FP8 weight"  # Moonshot's packed weights have a weight_scale too

# Format -> the last parts of tensor names, with their dtype where the name alone does not tell. The first match counts:
# formats share names (NVFP4 also has uint8 weights, AWQ also has scales), so the more particular ones come first.
_MARKS: dict[str, tuple[tuple[str, str], ...]] = {
    "NVFP4": (("weight_scale_2", ""), ("weight_global_scale", ""), ("weight_scale", "F8_E4M3")),
    "bitsandbytes": (("absmax", ""), ("quant_map", ""), ("SCB", "")),
    "MXFP4": (
        ("weight_scale", "U8"),
        ("weight_scale", "F8_E8M0"),
        ("gate_up_proj_blocks", ""),
        ("down_proj_blocks", ""),
        ("weight_packed", "U8"),
        ("weight", "U8"),
        ("weight", "F4"),
    ),
    "AWQ or GPTQ": (("qweight", ""), ("qzeros", ""), ("g_idx", "")),
    "MLX": (("scales", ""), ("biases", ""), ("weight", "U32")),
    "W4A8 (W4AFP8) or INT8": (("weight", "I8"), ("weight_packed", "I8")),
    "INT4 with zero points or reordered columns": (("weight_zero_point", ""), ("weight_g_idx", "")),
    "MXFP8": (("weight_scale_inv", "U8"), ("weight_scale_inv", "F8_E8M0")),
    "FP8 with a scale for each channel, tensor or compressed-tensors block": (
        (_BESIDE_FP8, ""),
        ("input_scale", ""),
        ("weight", "F8_E5M2"),
    ),
}


def refuse_foreign_formats(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse a quantization other than Moonshot's INT4 and K2-Instruct's FP8, by name.

    Args:
        folder: for the message.
        tensors: of the language model alone.

    Raises:
        Eagle3RefError: naming the format and the tensors that show it.
    """
    marks: dict[tuple[str, str], list[StoredTensor]] = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        marks.setdefault((last, tensor.dtype), []).append(tensor)
        if last == "weight_scale" and (weight := tensors.get(f"{stem}.weight")) and weight.dtype.startswith("F8"):
            marks.setdefault((_BESIDE_FP8, tensor.dtype), []).append(tensor)
    for format_name, wanted in _MARKS.items():
        for last, dtype in wanted:
            found = [each for key, group in marks.items() if key[0] == last and dtype in ("", key[1]) for each in group]
            if found:
                raise Eagle3RefError(
                    f"checking the tensors of {folder}",
                    found=f"{format_name}: {first_few(found)}",
                    expected="bf16 weights, Moonshot's INT4 (weight_packed, weight_scale, weight_shape), "
                    "or K2-Instruct's FP8 (weight, weight_scale_inv)",
                    action="This quantization is not read; use Moonshot's own files or a bf16 copy of them.",
                )

"""A draft whose matrix products take the fastest way that this machine has: a twin of the draft it is made from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eagle3ref.draft import Eagle3Draft
from eagle3ref.positions.onednn import OneDnnLinear
from eagle3ref.positions.screened_head import ScreenedHead


def fast_twin(draft: Eagle3Draft) -> Eagle3Draft:
    """The draft with the same tensors and, where that is faster, other code for its products; else the draft itself.

    Its floats differ from the draft's as those of two libraries do, in the last bits.
    """
    if not _onednn_takes(draft.fc.weight):
        return draft
    screens = draft.fc.weight.dtype == torch.float32 and torch.cpu._is_avx512_bf16_supported()
    twin = draft.rewired(draft.config)
    linears = [(name, module) for name, module in twin.named_modules() if isinstance(module, nn.Linear)]
    for name, linear in linears:
        parent, _, child = name.rpartition(".")
        kind = ScreenedHead if name == "lm_head" and screens else OneDnnLinear
        setattr(twin.get_submodule(parent), child, kind(linear))
    return twin


def _onednn_takes(weight: Tensor) -> bool:
    is_plain = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

"""Runs first in each of SGLang's processes: lets transformers import torchvision beside a CPU build of torch.

The torchvision on PyPI is built for CUDA. Its compiled operators do not load here, and its Python part stops at once
because it registers shapes for operators that do not exist. Declaring them is enough: none is ever called.
"""

from torch.library import Library

_declared = Library("torchvision", "DEF")
_declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

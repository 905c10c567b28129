"""Target-only sampling on a CPU: SGLang's CUDA kernel, compiled as C++ from the installed package.

The kernel is SGLang's only implementation of the rule, and needs CUDA. It is one loop over the tree and one over a row
of probabilities, so it runs as it stands, with ``cuda_as_cpp`` in place of CUDA's headers. Top-k and top-p are kernels
of FlashInfer and stay out.
"""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from torch import Tensor

from .rounds import record

HEADERS = Path(__file__).parents[1] / "cuda_as_cpp"
SMALLEST_THRESHOLD = 1e-9  # SGLang's launcher clamps threshold_acc to it


def sample(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
) -> None:
    """SGLang's ``tree_speculative_sampling_target_only``; with one thread every order is ``deterministic``."""
    links = retrive_index, retrive_next_token, retrive_next_sibling
    coins = uniform_samples, uniform_samples_for_final_sampling
    tensors = predicts, accept_index, accept_token_num, candidates, *links, *coins, target_probs, draft_probs
    if not all(tensor.is_contiguous() for tensor in tensors) or not deterministic:
        raise NotImplementedError("target-only sampling of tensors with gaps, or by an order that changes")
    sizes = len(candidates), accept_index.shape[1], candidates.shape[1]
    thresholds = threshold_single, max(threshold_acc, SMALLEST_THRESHOLD)
    _kernel(target_probs.shape[-1])(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        *(ctypes.c_uint32(size) for size in sizes),
        *(ctypes.c_float(threshold) for threshold in thresholds),
    )
    record(accept_token_num, candidates, retrive_next_token, retrive_next_sibling)


@cache
def _kernel(vocabulary: int) -> ctypes._CFuncPtr:
    import sglang.kernels

    installed = Path(sglang.kernels.__path__[0]) / "jit/include/sgl_kernel/speculative/sampling.cuh"
    with tempfile.TemporaryDirectory() as folder:
        # nvcc takes the call of a dependent template as it is; the standard wants it named as one.
        source = installed.read_text().replace(".Sum<", ".template Sum<")
        (Path(folder) / "speculative_sampling.h").write_text(source)
        library = Path(folder) / "target_only.so"
        headers = [f"-I{HEADERS}", f"-I{folder}", f"-DVOCABULARY={vocabulary}"]
        compile_as = ["-std=c++17", "-O1", "-shared", "-fPIC", "-o", library]
        subprocess.run(["c++", *compile_as, *headers, HEADERS / "target_only.cpp"], check=True)
        return ctypes.CDLL(str(library)).target_only

"""Stands in for SGLang's compiled CPU operators (package ``sgl_kernel``), which PyPI does not carry.

SGLang 0.5.23 picks the operators of this package as soon as its device is a CPU. Nearly all of them have a Triton twin
in SGLang itself, which it launches on GPUs; here the twins are launched instead, through Triton's interpreter
(``TRITON_INTERPRET=1``). So tree building, verification, the layout of the draft's rows and every copy of slots are
SGLang's own code. Only attention is restated, in PyTorch (``attention.py``), since the interpreter would take minutes.

For correctness, not for speed: a round takes a tenth of a second and more.
"""

import torch

from .attention import decode_attention_cpu, extend_attention_cpu
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# The attention backend asks for these two under torch.ops, where a plain function does as well.
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu

# SGLang's MLA draft waits for the GPU once it has the target's embedding, without asking whether there is one.
torch.cuda.synchronize = lambda _device=None: None

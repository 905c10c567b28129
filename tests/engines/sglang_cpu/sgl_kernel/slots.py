"""Bookkeeping of key-value slots: SGLang's Triton kernels, launched as SGLang launches them on a GPU.

The imports are inside the functions because SGLang imports this package while those modules are being imported.
"""

import torch
from torch import Tensor


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor, slot_table: Tensor, lengths: Tensor, slots: Tensor, row_width: int, topk: int, num_steps: int
) -> None:
    """The slots behind each request's ``lengths``, ``topk * num_steps`` of them."""
    from sglang.kernels.ops.speculative.cache_locs import assign_draft_cache_locs_contiguous as kernel

    kernel[(len(lengths),)](requests, slot_table, lengths, slots, row_width, topk, num_steps)


def assign_extend_cache_locs_cpu(
    requests: Tensor, slot_table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, row_width: int
) -> None:
    """The slots from ``starts`` to ``ends`` of each request, one request after the other."""
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs as kernel

    kernel[(len(starts),)](requests, slot_table, starts, ends, slots, row_width, _power_of_2(len(starts)))


def assign_req_to_token_pool_cpu(
    requests: Tensor, slot_table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, row_width: int
) -> None:
    """The other way round: ``slots`` written into the table."""
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool as kernel

    kernel[(len(starts),)](requests, slot_table, starts, ends, slots, row_width, _power_of_2(len(starts)))


def build_draft_decode_metadata_cpu(
    slot_table: Tensor, requests: Tensor, lengths: Tensor, topk: int, num_steps: int, row_width: int
) -> Tensor:
    """The slots that each branch of each request may read in the draft's steps, a row for each branch.

    Step i reads the first ``length + i + 1`` of a row, so the list that the kernel makes for the last step is the row.
    """
    from sglang.kernels.ops.speculative.cache_locs import generate_draft_decode_kv_indices as kernel

    branches = len(lengths) * topk
    read = lengths.new_zeros(num_steps, topk * int(lengths.sum()) + branches * num_steps)
    ends = torch.zeros(num_steps, branches + 1, dtype=torch.int32)
    kernel[(num_steps, len(lengths), topk)](
        requests,
        slot_table,
        lengths,
        read,
        ends,
        lengths.repeat_interleave(topk),
        slot_table.stride(0),
        read.shape[1],
        ends.shape[1],
        _power_of_2(len(lengths)),
        _power_of_2(num_steps),
        _power_of_2(branches),
        page_size=1,
    )
    rows = slot_table.new_zeros(branches, row_width)
    for branch, (start, end) in enumerate(ends[-1].unfold(0, 2, 1).tolist()):
        rows[branch, : end - start] = read[-1, start:end]
    return rows


def copy_all_layer_kv_cache_cpu(pools: Tensor, row_bytes: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Rows ``sources`` of every pool (given by address) copied to rows ``targets``."""
    from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_tiled as kernel

    count, widest = len(targets), int(row_bytes.max())
    kernel[(len(pools), 1)](
        pools, row_bytes, targets, sources, count, _power_of_2(count), BYTES_PER_TILE=_power_of_2(widest)
    )


def fill_accept_out_cache_loc_cpu(accepted: Tensor, slots: Tensor, accepted_slots: Tensor) -> None:
    """The slots of the accepted nodes, closed up."""
    from sglang.kernels.ops.speculative.eagle import fill_accept_out_cache_loc as kernel

    kernel[(accepted.numel(),)](accepted, slots, accepted_slots, _power_of_2(accepted.numel()))


def fill_bonus_tokens_cpu(tokens: Tensor, accept_lengths: Tensor, bonus_tokens: Tensor, row_width: int) -> None:
    """The last accepted token of each row; the lengths count the bonus."""
    from sglang.kernels.ops.speculative.eagle import fill_bonus_tokens as kernel

    kernel[(len(accept_lengths),)](tokens, accept_lengths, bonus_tokens, row_width)


def rotate_input_ids_cpu(
    tokens: Tensor, starts: Tensor, lengths: Tensor, next_tokens: Tensor, last_rows: Tensor | None = None
) -> None:
    """Each request's tokens moved up by one, the next token behind them."""
    from sglang.kernels.ops.speculative.multi_layer_eagle import rotate_input_ids_kernel as kernel

    kernel[(len(lengths),)](tokens, starts, lengths, next_tokens, last_rows, BLOCK_SIZE=4096)


def _power_of_2(count: int) -> int:
    return 1 << (count - 1).bit_length()

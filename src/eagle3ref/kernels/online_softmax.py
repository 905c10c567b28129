"""One block of keys at a time: the step of an online softmax (arXiv 1805.02867), and which keys a query row sees.

Scores are in units of log2, since the hardware's exponential is a power of two.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = math.log2(math.e)


@triton.jit
def attend_block(scores, values, largest, total, output):
    """One step of the online softmax.

    Args: scores [M, keys] in log2, -inf where hidden; values [keys, Dv]; the state so far, [M], [M] and [M, Dv].
    """
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    # While a row has seen nothing its largest is -inf, and -inf - -inf is no number.
    reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - reference[:, None])
    fade = tl.exp2(largest - reference)
    total = total * fade + tl.sum(weights, 1)
    output = tl.dot(weights.to(values.dtype), values, acc=output * fade[:, None], input_precision="ieee")
    return new_largest, total, output


@triton.jit
def is_visible(words, word_stride, start, last, is_own, block_keys: tl.constexpr):
    """bool [M, block_keys] for rows ``start`` and on: of own rows those whose bit is set, of a prefix all, up to last.

    words: pointers [M, 1] to the first ancestor word of each query row. start is a multiple of block_keys.
    """
    place = tl.arange(0, block_keys)[None, :]
    ancestors = tl.full((1, block_keys), -1, tl.int32)  # all bits
    for index in tl.static_range((block_keys + 31) // 32):  # a row's word is loaded once, not once for each bit
        first = start + 32 * index
        word = tl.load(words + (first // 32) * word_stride, mask=is_own & (first < last), other=-1)
        ancestors = tl.where(place // 32 == index, word, ancestors)
    bit = (start + place) % 32
    return (start + place < last) & (((ancestors >> bit) & 1) != 0)

"""How a word of eight INT4 values is taken apart in registers, and x to match."""

from __future__ import annotations

import triton
import triton.language as tl

EVEN, ODD = tl.constexpr(128.0), tl.constexpr(2048.0)  # what even and odd nibbles are added to


@triton.jit
def by_nibble(x, rows: tl.constexpr, words: tl.constexpr):
    """[rows, 8 words] -> eight of [rows, words]: inputs 8 j + i, for i = 0 .. 7."""
    even, odd = tl.split(tl.reshape(x, (rows, words, 4, 2)))
    even_low, even_high = tl.split(tl.reshape(even, (rows, words, 2, 2)))
    odd_low, odd_high = tl.split(tl.reshape(odd, (rows, words, 2, 2)))
    x0, x4 = tl.split(even_low)
    x2, x6 = tl.split(even_high)
    x1, x5 = tl.split(odd_low)
    x3, x7 = tl.split(odd_high)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def with_nibble(words, nibble: tl.constexpr):
    """A nibble n = q + 8 in the mantissa of 128.0 or 2048.0, which makes them 128 + n or 2048 + n.

    From there one multiply-add, ``(128 + n) * scale - 136 * scale``, gives q * scale, and no step of it is rounded:
    a scale has 11 bits at most, n and its companion 12. Odd nibbles are placed four bits below even ones, as they
    are in a word, so that two share a shift.
    """
    place: tl.constexpr = 12 if nibble % 2 else 16
    companion: tl.constexpr = 0x45000000 if nibble % 2 else 0x43000000  # 2048.0 and 128.0
    moved = words >> (4 * nibble - place) if 4 * nibble > place else words << (place - 4 * nibble)
    return (moved & (15 << place) | companion).to(tl.float32, bitcast=True)

"""Live speculative decoding with the target in the loop, by any acceptance rule."""

from eagle3ref.decode.live import Decoded, decode

__all__ = ["Decoded", "decode"]

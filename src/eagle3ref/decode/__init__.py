"""Live speculative decoding with the target in the loop, by any acceptance rule: one prompt, or many together."""

from eagle3ref.decode.answers import answer_prompts
from eagle3ref.decode.live import Decoded, decode
from eagle3ref.decode.memory import answering_bytes_per_token
from eagle3ref.decode.rounds import RoundDone

__all__ = ["Decoded", "RoundDone", "answer_prompts", "answering_bytes_per_token", "decode"]

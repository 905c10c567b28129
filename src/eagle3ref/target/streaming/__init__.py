"""Kimi-K2 checkpoints larger than the memory: weights are read layer by layer, ahead of the computation."""

from eagle3ref.target.streaming.target import StreamedTarget

__all__ = ["StreamedTarget"]

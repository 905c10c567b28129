"""The draft loop with static shapes and no host sync, and its capture as CUDA graphs."""

from eagle3ref.cuda_graph.buffers import prefix_buffers
from eagle3ref.cuda_graph.capture import GraphedDraftLoop, capture_draft_loop
from eagle3ref.cuda_graph.loop import Drafted, LoopStart, StaticDraftLoop

__all__ = ["Drafted", "GraphedDraftLoop", "LoopStart", "StaticDraftLoop", "capture_draft_loop", "prefix_buffers"]

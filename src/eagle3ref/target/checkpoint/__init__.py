"""What the files of a Kimi-K2 checkpoint hold: headers, census, formats, decoding, and what a pass over them costs."""

from eagle3ref.target.checkpoint.census import LAYOUTS, Census, LayerCensus, is_vision, open_census, take_census
from eagle3ref.target.checkpoint.decode import DequantizeInt4, as_tensor, decode_weight, read_tensor
from eagle3ref.target.checkpoint.gguf import refuse_gguf
from eagle3ref.target.checkpoint.header import StoredTensor
from eagle3ref.target.checkpoint.layout import expert_shapes, layer_shapes
from eagle3ref.target.checkpoint.plan import (
    PassCost,
    active_weights,
    attention_flops,
    experts_read,
    plan_pass,
    reads_all_experts,
)
from eagle3ref.target.checkpoint.shards import Shards
from eagle3ref.target.checkpoint.stored_weight import StoredWeight

__all__ = [
    "LAYOUTS",
    "Census",
    "DequantizeInt4",
    "LayerCensus",
    "PassCost",
    "Shards",
    "StoredTensor",
    "StoredWeight",
    "active_weights",
    "as_tensor",
    "attention_flops",
    "decode_weight",
    "expert_shapes",
    "experts_read",
    "is_vision",
    "layer_shapes",
    "open_census",
    "plan_pass",
    "read_tensor",
    "reads_all_experts",
    "refuse_gguf",
    "take_census",
]

"""The traps: one function each, which yields what it finds in a wiring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from eagle3ref.explain.trap import Severity, Trap
from eagle3ref.explain.traps.backends import inherited_backend, refused_topk, unnamed_backend
from eagle3ref.explain.traps.capture import (
    capture_off,
    ids_not_read,
    ids_out_of_order,
    other_points,
    points_outside,
    unknown_training,
    unsupported_target,
)
from eagle3ref.explain.traps.command import incomplete_config, other_folders, speculation_assumed, unknown_backend
from eagle3ref.explain.traps.flags import (
    adaptive_steps,
    adjusted_chain,
    ignored_token_map,
    impossible_tree,
    misspelled_flags,
    speculation_off,
    wrong_algorithm,
)
from eagle3ref.explain.traps.forward import (
    ambiguous_norm_output,
    ignored_keys,
    ignored_window,
    key_that_crashes,
    missing_key_read_as_true,
    short_context,
    short_rope,
    skipped_fc,
)
from eagle3ref.explain.traps.sampling import low_thresholds, rejection_sampling
from eagle3ref.explain.traps.shared import (
    missing_head,
    replaced_embedding,
    replaced_head,
    unsaid_vocabulary,
    wrong_vocabulary_map,
)
from eagle3ref.explain.traps.tensors import (
    dropped_tensors,
    quantized_draft,
    taken_for_mtp,
    tensors_not_loaded,
    too_many_layers,
    unsupported_architecture,
    wrong_shapes,
)
from eagle3ref.explain.wiring import Wiring

__all__ = ["ALL_TRAPS", "find_traps"]

ALL_TRAPS: tuple[Callable[[Wiring], Iterator[Trap]], ...] = (
    speculation_assumed,
    misspelled_flags,
    speculation_off,
    incomplete_config,
    wrong_algorithm,
    impossible_tree,
    adjusted_chain,
    adaptive_steps,
    ignored_token_map,
    other_folders,
    unknown_backend,
    refused_topk,
    unnamed_backend,
    inherited_backend,
    unsupported_target,
    capture_off,
    points_outside,
    ids_not_read,
    ids_out_of_order,
    other_points,
    unknown_training,
    unsupported_architecture,
    taken_for_mtp,
    too_many_layers,
    key_that_crashes,
    tensors_not_loaded,
    dropped_tensors,
    wrong_shapes,
    unsaid_vocabulary,
    missing_head,
    replaced_head,
    replaced_embedding,
    wrong_vocabulary_map,
    quantized_draft,
    ignored_keys,
    missing_key_read_as_true,
    ambiguous_norm_output,
    skipped_fc,
    short_context,
    short_rope,
    ignored_window,
    rejection_sampling,
    low_thresholds,
)


def find_traps(wiring: Wiring) -> tuple[Trap, ...]:
    """Every trap that is hit, the worst first."""
    found = [trap for look in ALL_TRAPS for trap in look(wiring)]
    order: tuple[Severity, ...] = get_args(Severity)
    return tuple(sorted(found, key=lambda trap: order.index(trap.severity)))

"""Faults of the draft's network: norms, residual, the order of its inputs, rope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3ref.config import FINAL_NORM_MEANING, FinalNorm, MLAConfig, RopeConfig
from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.hypothesis import Cause, Hypothesis, LeftOut
from eagle3ref.diagnose.wiring import Wiring

_NORM: Cause = "norm_placement"
_ROPE: Cause = "rope_position"
_NORM_FIX = "Check that this engine version reads the key of config.json: `eagle3ref explain` lists the ignored ones."


def network_faults(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    """All of them."""
    yield from _final_norms(bench)
    yield from _first_norms(bench)
    yield from _layer(bench)
    yield from _rope_settings(bench)
    yield from _rope_layout(bench)


def _final_norms(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    own = bench.draft.config.final_norm
    others: dict[FinalNorm, tuple[str, str]] = {
        "head": ("state-before-norm", "right at the first position, low at the later ones"),
        "head+state": ("state-after-norm", "right at the first position, low at the later ones"),
        "none": ("final-norm-skipped", "below at every position"),
    }
    for final_norm, (name, looks) in others.items():
        if final_norm == own:
            yield LeftOut(name, _NORM, f"This is how the draft was trained: {FINAL_NORM_MEANING[own]}.")
            continue
        does = f"It runs another final norm than the draft was trained with: {FINAL_NORM_MEANING[final_norm]}."
        yield Hypothesis(name, _NORM, does, f"{_NORM_FIX} Here: norm_output.", looks, Wiring(final_norm=final_norm))


def _first_norms(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    config = bench.draft.config
    low = "far below or near 1.00, at every position"
    for name, key, is_on, wiring in (
        ("fc-norm-missing", "fc_norm", config.fc_norm, Wiring(fc_norm=False)),
        ("norm-before-fc-missing", "norm_before_fc", config.norm_before_fc, Wiring(norm_before_fc=False)),
    ):
        if is_on:
            yield Hypothesis(name, _NORM, f"It does not run {key}.", f"{_NORM_FIX} Here: {key}.", low, wiring)
        else:
            yield LeftOut(name, _NORM, f"The draft has no {key}.")


def _layer(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    config = bench.draft.config
    low = "below at every position"
    trained, run = ("normed", "raw") if config.norm_before_residual else ("raw", "normed")
    does = f"The residual of the decoder layer is the {run} state; the draft was trained on the {trained} one."
    fix = f"{_NORM_FIX} Here: norm_before_residual."
    wiring = Wiring(norm_before_residual=not config.norm_before_residual)
    yield Hypothesis("norm-before-residual-flipped", _NORM, does, fix, low, wiring)
    once, twice = "hidden_norm alone", "input_layernorm and hidden_norm"
    trained, run = (twice, once) if config.hidden_double_norm else (once, twice)
    does = f"The state passes {run}; the draft was trained with {trained}."
    fix = "Export the draft for this engine; trainers differ here and no key says so."
    wiring = Wiring(double_norm=not config.hidden_double_norm)
    yield Hypothesis("double-norm-flipped", _NORM, does, fix, low, wiring)
    does = "The decoder layer takes [state; embedding] where it was trained on [embedding; state]."
    fix = (
        "Exchange the two halves of the columns of the first layer's projections when exporting, or update the engine."
    )
    yield Hypothesis("inputs-swapped", _NORM, does, fix, "near 1.00 at every position", Wiring(swaps_inputs=True))


def _rope_settings(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    rope, target = bench.draft.config.attention.rope, bench.target_rope
    fix = "Give the draft's config.json its own rope_theta and rope_scaling, and check that the engine reads them."
    looks = "right with short prompts, falls as texts grow"
    name = "target-theta"
    if target is None:
        reason = "The target's rope settings are not known."
        yield LeftOut(name, _ROPE, reason, "Pass the target's folder (--target).")
    elif target.theta == rope.theta:
        yield LeftOut(name, _ROPE, f"Draft and target have the same theta, {rope.theta:g}.")
    else:
        does = f"The draft reads the target's rotary table: theta {target.theta:g} instead of {rope.theta:g}."
        yield Hypothesis(name, _ROPE, does, fix, looks, Wiring(rope=replace(rope, theta=target.theta)))
    if rope.type == "default":
        yield LeftOut("rope-scaling-missing", _ROPE, "The draft has no rope scaling.")
    else:
        does = f"It does not read the draft's rope scaling ({rope.type}) and rotates plainly."
        wiring = Wiring(rope=RopeConfig(rope.dim, rope.theta))
        yield Hypothesis("rope-scaling-missing", _ROPE, does, fix, looks, wiring)
    if rope.type == "yarn":
        yield from _yarn(bench, rope, fix)
    else:
        yield LeftOut("yarn-beta-fast", _ROPE, "The draft has no YaRN.")


def _yarn(bench: Bench, rope: RopeConfig, fix: str) -> Iterator[Hypothesis | LeftOut]:
    other = 1.0 if rope.beta_fast != 1 else 32.0
    does = f"It reads beta_fast as {other:g} instead of {rope.beta_fast:g}."
    looks = "slightly below, more with long prompts"
    wiring = Wiring(rope=replace(rope, beta_fast=other, beta_slow=min(rope.beta_slow, other)))
    yield Hypothesis("yarn-beta-fast", _ROPE, does, fix, looks, wiring)
    if rope.mscale_all_dim and isinstance(bench.draft.config.attention, MLAConfig):
        does = "It leaves YaRN's temperature (mscale_all_dim) out of the softmax scale."
        wiring = Wiring(rope=replace(rope, mscale_all_dim=0.0))
        yield Hypothesis("yarn-temperature-missing", _ROPE, does, fix, "slightly below, at every position", wiring)


def _rope_layout(bench: Bench) -> Iterator[Hypothesis]:
    trained, run = "half-split", "interleaved"
    attention = bench.draft.config.attention
    if isinstance(attention, MLAConfig) and attention.interleaved:
        trained, run = run, trained
    does = f"It rotates {run} pairs where the draft was trained with {trained} ones."
    fix = "Check rope_interleave, and that the engine takes the layout of the draft's own architecture."
    looks = "1.01 to 1.1, and hardly better with short prompts"
    yield Hypothesis("rope-layout-swapped", _ROPE, does, fix, looks, Wiring(swaps_rope_layout=True))

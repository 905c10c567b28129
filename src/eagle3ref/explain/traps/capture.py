"""Traps in the layer ids: the target's states that the draft gets are not those it was trained on."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.explain.case import Case
from eagle3ref.explain.trap import Trap
from eagle3ref.explain.wiring import Wiring


def points_outside(wiring: Wiring) -> Iterator[Trap]:
    """An id that becomes the input of no layer."""
    case = wiring.case
    if not wiring.captures or wiring.captured.failure is None:
        return
    yield Trap(
        "ids-outside",
        "fails at first forward",
        f"{_ids(case)} of {case.target.config.num_layers} layers",
        wiring.captured.failure,
        _right_ids(wiring),
        case.source("point_outside"),
    )


def other_points(wiring: Wiring) -> Iterator[Trap]:
    """Streams are captured, and they are not those of the training."""
    case = wiring.case
    captured, trained = wiring.captured, wiring.trained
    if not wiring.captures or captured.failure is not None or trained is None or captured.points == trained:
        return
    if next(ids_not_read(wiring), None) is not None:  # which says why
        return
    yield Trap(
        "other-capture-points",
        "silent, costs acceptance",
        f"the draft was trained on the inputs of layers {list(trained)}, and gets those of {list(captured.points)}",
        "no error; the text is right and fewer drafts are accepted, from a tenth of a token to nearly all of them",
        _right_ids(wiring),
        case.source("id_rules"),
    )


def ids_not_read(wiring: Wiring) -> Iterator[Trap]:
    """Ids under a key that this engine does not look at."""
    case = wiring.case
    config = case.draft.config
    if not wiring.captures or config.capture_ids is None or config.capture_ids_key in case.profile.capture_keys:
        return
    lost = wiring.captured.points != wiring.trained
    yield Trap(
        "ids-not-read",
        "silent, costs acceptance" if lost else "harmless",
        f"{_ids(case)} is not read; the inputs of layers {list(wiring.captured.points)} are captured by default",
        "no error, no warning" + ("" if lost else "; the default happens to be what the draft was trained on"),
        f"Move the list to {case.profile.capture_keys[0]}.",
        case.source("capture_keys"),
    )


def ids_out_of_order(wiring: Wiring) -> Iterator[Trap]:
    """A list that is not ascending: the states are concatenated in the order in which the layers run."""
    case = wiring.case
    ids = case.draft.config.capture_ids
    if ids is None or list(ids) == sorted(ids) or wiring.captured.failure is not None:
        return
    yield Trap(
        "ids-out-of-order",
        "silent, costs acceptance",
        f"{_ids(case)} is not ascending; the states are concatenated in the order of the layers",
        "no error; if the draft was trained in the order of the list, its fc gets the states in another one",
        "Write the ids in ascending order, and train the draft so.",
        case.source("id_rules"),
    )


def unknown_training(wiring: Wiring) -> Iterator[Trap]:
    """Ids whose numbering nobody can tell from the file."""
    case = wiring.case
    if wiring.trained is not None or not wiring.captures or wiring.captured.failure is not None:
        return
    yield Trap(
        "training-unknown",
        "silent, costs acceptance",
        f"{wiring.trained_how}; this engine captures the inputs of layers {list(wiring.captured.points)}",
        "no error; if the draft was trained on other layers, fewer drafts are accepted",
        _say_what_it_was_trained_on(),
        case.source("id_rules"),
    )


def _ids(case: Case) -> str:
    return f"{case.draft.config.capture_ids_key} = {list(case.draft.config.capture_ids or ())}"


def _right_ids(wiring: Wiring) -> str:
    case = wiring.case
    if wiring.trained is None:
        return _say_what_it_was_trained_on()
    if wiring.ids_for_trained is None:
        return f"{case.profile.engine} cannot be told to capture {list(wiring.trained)}."
    return f"Write {case.profile.capture_keys[0]} = {list(wiring.ids_for_trained)} into the draft's config.json."


def _say_what_it_was_trained_on() -> str:
    return "Find out on which layers' inputs the draft was trained, and say so with --capture-points."

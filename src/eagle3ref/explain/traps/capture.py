"""Traps in the layer ids: the target's states that the draft gets are not those it was trained on."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.engines import captured_points, engine_profile
from eagle3ref.explain.case import Case
from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_OTHER_ENGINE = {"SGLang": "vllm", "vLLM": "sglang"}  # by engine: a package, for its newest profile


def unsupported_target(wiring: Wiring) -> Iterator[Trap]:
    """A target that is not known to hand over its states on this engine, whatever the ids."""
    case = wiring.case
    if wiring.captures and not _can_capture(case):
        yield Trap(
            "unsupported-target",
            "fails at start",
            f"model_type = {case.target.model_type!r} is none of the targets with EAGLE-3 capture that were read for "
            f"{case.release}",
            "an error while the server starts, that the model does not support EAGLE-3; if none comes, nothing is "
            "known here of the layers",
            f"Use another release or engine; read for this one: {', '.join(sorted(case.profile.id_rules))}.",
            case.source("id_rules"),
        )


def capture_off(wiring: Wiring) -> Iterator[Trap]:
    """A key that switches capture off, in the config of a head whose fc was trained on captured states."""
    case = wiring.case
    config, engine = case.draft.config, case.profile.engine
    is_read = engine == "SGLang" or (engine == "vLLM" and case.draft.attention_kind == "gqa")
    if not (config.capture_is_off and wiring.is_eagle3 and is_read):
        return
    fits = config.hidden_size == config.target_hidden_size
    seen = {
        ("SGLang", True): "no error, no warning, accept len about 1.00: fc is skipped on the target's final state",
        ("SGLang", False): "a shape error: fc gets the target's final state alone",
    }.get((engine, fits), "fc is not built: accept len about 1, or with the model runner V2 an error on the width")
    file = "srt/model_executor/model_runner_components/spec_aux_hidden_state.py"
    yield Trap(
        "capture-off",
        "fails at first forward" if engine == "SGLang" and not fits else "silent, costs acceptance",
        "eagle_config.use_aux_hidden_state is false, which switches capture off; fc was trained on captured states",
        seen,
        "Write use_aux_hidden_state true in eagle_config of the draft's config.json.",
        read_in(engine, file if engine == "SGLang" else "model_executor/models/llama_eagle3.py"),
    )


def points_outside(wiring: Wiring) -> Iterator[Trap]:
    """An id that becomes the input of no layer."""
    case = wiring.case
    if not wiring.captures or wiring.captured.failure is None or not _can_capture(case):
        return
    yield Trap(
        "ids-outside",
        "fails at first forward",
        f"{_ids(case)} of {case.target.num_layers} layers",
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
    written = case.draft.written_ids
    if not wiring.captures or wiring.captured.failure is not None:  # which is the first to be put right
        return
    if not written or any(key in case.profile.capture_keys for key in written):
        return
    lost = wiring.captured.points != wiring.trained
    yield Trap(
        "ids-not-read",
        "silent, costs acceptance" if lost else "harmless",
        f"{_ids(case)} is not read; the inputs of layers {list(wiring.captured.points)} are captured by default",
        "no error, no warning" + ("" if lost else "; the default happens to be what the draft was trained on"),
        _right_ids(wiring),
        case.source("capture_keys"),
    )


def ids_out_of_order(wiring: Wiring) -> Iterator[Trap]:
    """A list that is not ascending: the states are concatenated in the order in which the layers run."""
    case = wiring.case
    ids = _read(case)[1]
    if not ids or list(ids) == sorted(ids) or wiring.captured.failure is not None:
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


def _can_capture(case: Case) -> bool:
    return case.target.model_type in case.profile.id_rules or "*" in case.profile.id_rules


def _ids(case: Case) -> str:
    key, ids = _read(case)
    return f"{key} = {list(ids)}" if key else "no ids in config.json"


def _read(case: Case) -> tuple[str, tuple[int, ...]]:
    """The list of ids that the engine reads, or else one that it does not, and where it stands."""
    written = case.draft.written_ids
    keys = [key for key in case.profile.capture_keys if written.get(key)]
    return next(((key, written[key]) for key in (*keys, *written)), ("", ()))


def _right_ids(wiring: Wiring) -> str:
    case = wiring.case
    if wiring.trained is None:
        return _say_what_it_was_trained_on()
    if wiring.ids_for_trained is None:
        return f"{case.release} cannot be told to capture {list(wiring.trained)}."
    ids, key = list(wiring.ids_for_trained), case.profile.ids_key
    if not case.profile.capture_keys:
        return f"Set {key} = {ids} at launch."
    return f"Write {key} = {ids} into the draft's config.json{_what_of_the_other(wiring, key)}."


def _what_of_the_other(wiring: Wiring, key: str | None) -> str:
    """Whether a list under another key stays: it may, where the other engine reads that key and captures the same."""
    case, written_at = wiring.case, _read(wiring.case)[0]
    if written_at in ("", key):
        return ""
    other = engine_profile(_OTHER_ENGINE[case.profile.engine])
    fused = case.draft.config.num_aux_hidden_states
    written = {written_at: case.draft.written_ids[written_at]}
    found = captured_points(other, written, case.target.model_type, case.target.num_layers, fused)
    if written_at in other.capture_keys and found.failure is None and found.points == wiring.trained:
        return f", and keep {written_at} for {other.name}: the file then serves both"
    return f", and take {written_at} out"


def _say_what_it_was_trained_on() -> str:
    return "Find out on which layers' inputs the draft was trained, and say so with --capture-points."

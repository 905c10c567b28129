"""From a dump to a trace: every sequence is checked before the first one is written."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.checks import PromptsByPrefix, refuse_sequence
from eagle3ref.dumps.convert import Converter, FinalState, dtype_name
from eagle3ref.dumps.dump import Dump
from eagle3ref.dumps.read import read_dump
from eagle3ref.dumps.target_head import TargetHead
from eagle3ref.dumps.versus_run import check_against_run
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import Target
from eagle3ref.target.inputs import check_capture_points
from eagle3ref.trace import (
    Prompt,
    RecordedSampling,
    RecordedSequence,
    TargetIdentity,
    Trace,
    TraceHeader,
    TraceWriter,
)
from eagle3ref.trace.format import HEADER_FILE
from eagle3ref.version import __version__

_NAMED = 5  # damaged sequences that a message names
_SCORED = 4  # sequences whose first choices are computed before anything is written
_GREEDY = RecordedSampling(0.0, 1.0, 0, None)


def import_dump(
    dump: Dump | str | Path,
    path: str | Path,
    *,
    target: Target | str | Path,
    capture_points: Sequence[int] | None = None,
    format: str | None = None,
    prompts: Iterable[Prompt] | None = None,
    sampling: RecordedSampling | None = None,
    final_state: FinalState | None = None,
    skip_damaged: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
    on_checked: Callable[[str], None] = lambda _: None,
    on_sequence: Callable[[RecordedSequence], None] = lambda _: None,
) -> Trace:
    """Write the sequences of a dump as a trace; one that is there already and came from the same dump is continued.

    With the target's weights at hand (embedding, final norm and head are read, no more), final states that were dumped
    before the norm are normed, the target's first choices are computed, and rows that stand one position off are found.
    With a loaded target, the believed capture points are held against a run of its own as well.

    Args:
        dump: a file or folder, or what ``read_dump`` made of it.
        path: the trace folder.
        target: the model whose states these are: its folder (config.json is enough), or the loaded model.
        capture_points: of the dumped states, in their order; as the reader believes when None.
        format: a key of ``FORMATS``; told from the files when None.
        prompts: for dumps that do not say where a prompt ends; found by id, else by what the tokens begin with.
        sampling: how the answers were chosen, which no dump says; greedy when None.
        final_state: whether the final states are behind the norm (``normed``), before it (``raw``), or not wanted
            (``drop``). None: as the norm's weight tells, else as the format says.
        skip_damaged: leave damaged sequences out instead of refusing the dump.
        on_note: called with each sentence of what is believed and why, and of what was done or left out.
        on_checked: called with the id of every sequence that was looked at.
        on_sequence: called after each sequence that was written.

    Raises:
        Eagle3RefError: nothing that can be read, capture points that nobody knows or that do not fit, damaged
            sequences (all counted, the first ones named, nothing written), or a folder that holds something else.
    """
    config = TargetConfig.from_folder(target) if isinstance(target, str | Path) else target.config
    given = {prompt.id: prompt for prompt in prompts or ()}
    source = dump if isinstance(dump, Dump) else read_dump(dump, format=format, target=config, prompts=given)
    head, no_head = TargetHead.of(target)
    points = _points(source, capture_points, config)
    converter = Converter(source, points, config, head, PromptsByPrefix(given), final_state)
    for note in _beliefs(source, points, given=capture_points is not None):
        on_note(note)
    if isinstance(target, str | Path):
        on_note("that the states are those, and in that order, is not checked; eagle3ref align proves it")
    if head is None:
        on_note(f"which tokens are the target's first choices is not known: {no_head}")
    if sampling is None:
        on_note("sampling: taken as greedy; no dump says")
    dtype, bad = _check_all(converter, Path(path), on_checked)
    for remark, number in converter.remarks.items():
        on_note(f"{remark} ({number:,} of {len(source):,} sequences)")
    if bad and not (skip_damaged and len(bad) < len(source)):
        raise _damage(source, bad)
    if bad:
        verb = "is" if len(bad) == 1 else "are"
        on_note(f"{len(bad):,} of {len(source):,} sequences {verb} left out as damaged: {_listed(bad)}")
    if not isinstance(target, str | Path):
        check_against_run(converter, target, next(each for each in source.ids if each not in bad))
        on_note("each state is nearest to its capture point in a run of the target")
    header = _header(converter, dtype, sampling or _GREEDY, len(source) - len(bad))
    with TraceWriter.open(path, header) as writer:
        for sequence_id in source.ids:
            if sequence_id not in bad and sequence_id not in writer.done:
                _add(converter, sequence_id, writer, skip_damaged, on_note, on_sequence)
    return Trace.open(path)


def _add(
    converter: Converter,
    sequence_id: str,
    writer: TraceWriter,
    skip_damaged: bool,
    on_note: Callable[[str], None],
    on_sequence: Callable[[RecordedSequence], None],
) -> None:
    try:
        sequence = converter.load(sequence_id)
    except Eagle3RefError as error:  # its rows stand one position off, which only its scores have shown
        if not skip_damaged:
            raise
        on_note(f"a damaged sequence is left out: {_listed({sequence_id: error})}")
        return
    writer.add(sequence)
    on_sequence(sequence)


def _points(dump: Dump, given: Sequence[int] | None, config: TargetConfig) -> tuple[int, ...]:
    if dump.capture_points == ():
        _refuse(dump, dump.reason, "states for a draft to read", "Dump the layers that the draft's config names.")
    points = dump.capture_points if given is None else tuple(given)
    if points is None:
        found = f"nothing that tells which layers were dumped: {dump.reason}"
        action = "Name them with --capture-points; eagle3ref align finds them out by running the target."
        _refuse(dump, found, "one capture point for each state", action)
    check_capture_points(sorted(set(points)), config.num_layers)
    if len(set(points)) != len(points):
        _refuse(dump, f"the capture points {points}", "a different one for each state", "Correct --capture-points.")
    return points


def _beliefs(dump: Dump, points: tuple[int, ...], *, given: bool) -> list[str]:
    """One sentence each."""
    notes = [f"format {dump.format}: {len(dump):,} sequences"]
    notes.append(f"capture points {points}: {'given' if given else dump.reason}")
    if given and dump.capture_points not in (None, points):
        notes.append(f"the reader would have taken {dump.capture_points}: {dump.reason}")
    return [*notes, *dump.notes]


def _check_all(
    converter: Converter, path: Path, on_checked: Callable[[str], None]
) -> tuple[str, dict[str, Eagle3RefError]]:
    """The dtype of the states, and every damaged sequence."""
    trace = Trace.open(path) if (path / HEADER_FILE).is_file() else None
    recorded = frozenset(() if trace is None else trace.ids)
    bad: dict[str, Eagle3RefError] = {}
    dtypes: dict[str, str] = {}
    for sequence_id in converter.dump.ids:
        try:
            # A shift is the producer's and in all of them: the first few show it before anything is written.
            sequence = (converter.load if len(dtypes) < _SCORED else converter.check)(sequence_id)
            dtypes[sequence_id] = dtype_name(sequence)
            if trace is not None and sequence_id in recorded:
                _same_as_recorded(sequence, trace.sequence(sequence_id), trace)
        except Eagle3RefError as error:
            # Not the error itself: it would keep the frames, and with them the tensors, of every damaged sequence.
            bad[sequence_id] = Eagle3RefError(
                error.doing, found=error.found, expected=error.expected, action=error.action
            )
        on_checked(sequence_id)
    usual = Counter(dtypes.values()).most_common(1)[0][0] if dtypes else "float32"
    for sequence_id, dtype in dtypes.items():
        if dtype != usual and sequence_id not in bad:
            bad[sequence_id] = _error_of(sequence_id, f"states in {dtype}", f"{usual}, as the others are")
    return usual, bad


def _same_as_recorded(sequence: RecordedSequence, other: RecordedSequence, trace: Trace) -> None:
    if len(sequence.tokens) != len(other.tokens) or bool((sequence.tokens != other.tokens).any()):
        _refuse_other(sequence.id, "tokens", trace)
    if sequence.aux_hidden_states.keys() != other.aux_hidden_states.keys():
        return  # the header has other points, which is told when it is opened; other dtypes too
    for point, state in sequence.aux_hidden_states.items():
        recorded = other.aux_hidden_states[point]
        if recorded.dtype == state.dtype and not torch.equal(recorded, state):
            _refuse_other(sequence.id, f"states at capture point {point}", trace)
    finals = (sequence.final_hidden_state, other.final_hidden_state)
    if [final is None for final in finals] not in ([True, True], [False, False]):
        _refuse_other(sequence.id, "settings for the final state", trace)


def _refuse_other(sequence_id: str, what: str, trace: Trace) -> NoReturn:
    found = f"other {what} under this id in {trace.path}"
    refuse_sequence(sequence_id, found, "the same sequence", "Import into another folder.")


def _header(converter: Converter, dtype: str, sampling: RecordedSampling, num_sequences: int) -> TraceHeader:
    dump = converter.dump
    return TraceHeader(
        target=TargetIdentity.of(converter.config),
        tokenizer_sha256=None,
        capture_points=tuple(sorted(converter.points)),
        dtype=dtype,
        sampling=sampling,
        engine=f"{dump.engine or dump.format}, imported by eagle3ref {__version__}",
        provenance={
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "dump": str(dump.path.absolute()),
            "format": dump.format,
            "sequences": str(num_sequences),
            "capture points": f"{converter.points}, believed {dump.capture_points}: {dump.reason}",
        },
    )


def _refuse(dump: Dump, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(f"importing {dump.path}", found=found, expected=expected, action=action)


def _damage(dump: Dump, bad: Mapping[str, Eagle3RefError]) -> Eagle3RefError:
    first = next(iter(bad.values()))
    action = f"{first.action} Nothing was written; --skip-damaged leaves such sequences out."
    return Eagle3RefError(
        f"importing {dump.path}",
        found=f"{len(bad):,} of {len(dump):,} sequences that cannot be used: {_listed(bad)}",
        expected=first.expected,
        action=action if len(bad) < len(dump) else f"{first.action} Nothing was written.",
    )


def _listed(bad: Mapping[str, Eagle3RefError]) -> str:
    named = [f"{name!r} ({error.found})" for name, error in list(bad.items())[:_NAMED]]
    return "; ".join([*named, f"and {len(bad) - _NAMED:,} more"] if len(bad) > _NAMED else named)


def _error_of(sequence_id: str, found: str, expected: str) -> Eagle3RefError:
    return Eagle3RefError(
        f"checking sequence {sequence_id!r}", found=found, expected=expected, action="Dump it in that dtype."
    )

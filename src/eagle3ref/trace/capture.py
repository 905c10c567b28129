"""Capture: run a target over prompts and its own answers, and record what a draft would have seen."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence, Set
from contextlib import closing
from pathlib import Path

from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.decode import RoundDone
from eagle3ref.draft import Eagle3Draft
from eagle3ref.target import Target
from eagle3ref.target.base import LayerMajorTarget
from eagle3ref.target.generate import Sampling
from eagle3ref.target.streaming import StreamedTarget
from eagle3ref.trace.answers import answered_pass
from eagle3ref.trace.block_pass import record_in_blocks
from eagle3ref.trace.format import HEADER_FILE, Trace, read_index
from eagle3ref.trace.layer_pass import StatesInMemory, record_layer_major
from eagle3ref.trace.passes import LayerDone
from eagle3ref.trace.plan import CapturePlan
from eagle3ref.trace.prompt_checks import check_recorded
from eagle3ref.trace.prompts import Prompt
from eagle3ref.trace.request import CaptureRequest, named_prompts
from eagle3ref.trace.sequence import RecordedSequence
from eagle3ref.trace.streamed_passes import StreamedPasses
from eagle3ref.trace.work_folder import WorkFolder
from eagle3ref.trace.writer import TraceWriter


def capture(
    target: Target,
    prompts: Sequence[Prompt | Tensor],
    path: str | Path,
    *,
    capture_points: Sequence[int],
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    batch_size: int | None = None,
    final_hidden_state: bool = False,
    tokenizer_sha256: str | None = None,
    draft: Eagle3Draft | None = None,
    tree: TreeConfig | None = None,
    on_sequence: Callable[[RecordedSequence], None] = lambda _: None,
    on_plan: Callable[[CapturePlan], None] = lambda _: None,
    on_round: Callable[[RoundDone], None] = lambda _: None,
    on_layer: Callable[[LayerDone], None] = lambda _: None,
) -> Trace:
    """Record a trace; one that is there already and was made with the same settings is continued.

    Every prompt without an answer is answered by the target. Then prompt and answer run through the target once more,
    as a server's prefill does, and the states of that pass are recorded. With a target whose weights are streamed, a
    capture that was killed goes on at the layer where it was; otherwise at the batch.

    Args:
        target: the model.
        prompts: ``Prompt`` objects, or int64 [T] tensors, named by their place.
        path: the trace folder.
        capture_points: residual streams to record: ``draft.capture_points``, and neighbours for a later diagnosis.
        max_new_tokens: of each generated answer.
        sampling: greedy when None.
        batch_size: prompts that run together, at most. None: 32; with streamed weights, all that the target's memory
            bound admits. Prompts keep their batch when a capture is resumed.
        final_hidden_state: record it too; rules that need the target's probabilities take them from it.
        tokenizer_sha256: from ``read_prompts``.
        draft: speculate with it while answering, which takes fewer forwards.
        tree: of the draft.
        on_sequence: called after each recorded sequence.
        on_plan: with streamed weights, called before a weight is read.
        on_round: called after each round of generated answers, in which every open answer gets a token, or with a draft
            one and those accepted.
        on_layer: with streamed weights, called when all sequences of a pass have reached another layer.

    Raises:
        Eagle3RefError: an empty prompt, ids outside the vocabulary, a prompt and answer longer than the model's
            positions or larger than its memory bound, capture points that the target does not have, a disk without
            room for the trace, or a folder that holds something else: another trace, or under a prompt's id another
            prompt or answer.
    """
    request = CaptureRequest(
        target=target,
        prompts=named_prompts(prompts),
        capture_points=tuple(capture_points),
        max_new_tokens=max_new_tokens,
        sampling=sampling or Sampling(),
        batch_size=batch_size,
        final_hidden_state=final_hidden_state,
        tokenizer_sha256=tokenizer_sha256,
        draft=draft,
        tree=tree,
    )
    header, groups = request.header(), request.groups()
    with TraceWriter.open(path, header) as writer:
        check_recorded(Trace.open(path), request.prompts, final_hidden_state)
        if isinstance(target, StreamedTarget):
            work = WorkFolder(Path(path), header, final_hidden_state)
            begun = work.find(request.prompts)
            groups = work.settled(groups, request.cut_from())
            passes = StreamedPasses(target, request, groups, work, begun, writer.done)
            plan = passes.plan()
            plan.check_room(Path(path))
            on_plan(plan)
            recorded = passes.record(on_round, on_layer)
        else:
            recorded = _record_resident(request, groups, writer.done, on_round)
        with closing(recorded):  # an error here ends its threads too
            for sequence in recorded:
                if sequence.id not in writer.done:
                    writer.add(sequence)
                    on_sequence(sequence)
    return Trace.open(path)


def plan_capture(
    target: StreamedTarget,
    prompts: Sequence[Prompt | Tensor],
    path: str | Path,
    *,
    capture_points: Sequence[int],
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    batch_size: int | None = None,
    final_hidden_state: bool = False,
    tokenizer_sha256: str | None = None,
    draft: Eagle3Draft | None = None,
    tree: TreeConfig | None = None,
) -> CapturePlan:
    """What ``capture`` would still have to do with these arguments. Nothing is written, and no weight is read.

    Raises:
        Eagle3RefError: as ``capture``, but for what only writing finds; whether the disk has room is in the plan.
    """
    request = CaptureRequest(
        target=target,
        prompts=named_prompts(prompts),
        capture_points=tuple(capture_points),
        max_new_tokens=max_new_tokens,
        sampling=sampling or Sampling(),
        batch_size=batch_size,
        final_hidden_state=final_hidden_state,
        tokenizer_sha256=tokenizer_sha256,
        draft=draft,
        tree=tree,
    )
    folder = Path(path)
    done = {entry.id for entry in read_index(folder)[1]} if (folder / HEADER_FILE).is_file() else set()
    work = WorkFolder(folder, request.header(), final_hidden_state)
    return StreamedPasses(target, request, request.groups(), work, work.find(request.prompts), done).plan()


def _record_resident(
    request: CaptureRequest, groups: Sequence[range], done: Set[str], on_round: Callable[[RoundDone], None]
) -> Generator[RecordedSequence, None, None]:
    """Passes that take seconds: a kill loses the one that was running."""
    target, with_final = request.target, request.final_hidden_state
    for places in groups:
        if all(request.prompts[i].id in done for i in places):
            continue
        group = answered_pass(request, places, None, on_round)
        if isinstance(target, LayerMajorTarget):
            kept = StatesInMemory(request.capture_points)
            yield from record_layer_major(target, group, kept, done, final_hidden_state=with_final)
        else:
            yield from record_in_blocks(target, group, request.capture_points, final_hidden_state=with_final)

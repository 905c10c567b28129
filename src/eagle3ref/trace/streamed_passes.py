"""Passes of a target whose weights are streamed: each one is resumed at the layer where a kill has stopped it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence, Set

from eagle3ref.decode import RoundDone
from eagle3ref.target.streaming import StreamedTarget
from eagle3ref.trace.answers import answered_pass
from eagle3ref.trace.layer_pass import record_layer_major
from eagle3ref.trace.passes import LayerDone, Pass
from eagle3ref.trace.plan import CapturePlan, plan_passes
from eagle3ref.trace.request import CaptureRequest
from eagle3ref.trace.sequence import RecordedSequence
from eagle3ref.trace.work_folder import WorkFolder


class StreamedPasses:
    """What is left of a capture.

    Args:
        target: the model.
        request: all of the capture.
        groups: places of the prompts that share a pass.
        work: of the trace.
        begun: the pass that it holds.
        done: ids of the sequences that are in the trace; it grows with them.
    """

    def __init__(
        self,
        target: StreamedTarget,
        request: CaptureRequest,
        groups: Sequence[range],
        work: WorkFolder,
        begun: Pass | None,
        done: Set[str],
    ) -> None:
        self._target, self._request, self._work, self._done = target, request, work, done
        covered = set(done)
        if begun is not None:
            covered |= {prompt.id for prompt in begun.prompts}
        self._left = [places for places in groups if any(request.prompts[i].id not in covered for i in places)]
        self._begun = None if begun is None or all(prompt.id in done for prompt in begun.prompts) else begun

    def plan(self) -> CapturePlan:
        """What they will take."""
        request, lengths = self._request, self._request.lengths()
        unanswered = [sum(request.prompts[i].answer is None for i in places) for places in self._left]
        return plan_passes(
            self._target,
            [
                *([] if self._begun is None else [self._begun.lengths]),
                *([lengths[i] for i in places] for places in self._left),
            ],
            num_capture_points=len(request.capture_points),
            final_hidden_state=request.final_hidden_state,
            layers_done=0 if self._begun is None else self._work.layers_done(),
            tokens_recorded=0 if self._begun is None else self._begun.count_tokens(self._done),
            bytes_written=self._work.num_bytes(),
            unanswered=[number for number in unanswered if number],
            rounds=request.max_new_tokens if any(unanswered) else 0,
            folder=self._work.path,
        )

    def record(
        self, on_round: Callable[[RoundDone], None], on_layer: Callable[[LayerDone], None]
    ) -> Generator[RecordedSequence, None, None]:
        """Run them, and give the sequences in their order; the work folder is gone when all are through.

        Args:
            on_round: called after each round of generated answers.
            on_layer: called when a pass has reached another layer.
        """
        num_begun = int(self._begun is not None)
        num_passes = num_begun + len(self._left)
        if self._begun is not None:
            yield from self._run(self._begun, 0, num_passes, on_layer)
        for number, places in enumerate(self._left, num_begun):
            group = answered_pass(self._request, places, self._work.journal(), on_round)
            self._work.begin(group)
            yield from self._run(group, number, num_passes, on_layer)
        self._work.end()

    def _run(
        self, group: Pass, number: int, num_passes: int, on_layer: Callable[[LayerDone], None]
    ) -> Iterator[RecordedSequence]:
        target, num_tokens = self._target, sum(group.lengths)

        def tell(layer: int) -> None:
            on_layer(LayerDone(number, num_passes, layer, target.config.num_layers, num_tokens, target.bytes_read))

        with self._work.states(group, self._done) as kept:
            yield from record_layer_major(
                target, group, kept, self._done, final_hidden_state=self._request.final_hidden_state, on_layer=tell
            )
        self._work.end_pass()

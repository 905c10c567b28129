"""One pass in blocks of rows through all layers, for a target that cannot go layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eagle3ref.sampling import argmax_first
from eagle3ref.target.base import Scores, Target
from eagle3ref.target.prefill import prefill
from eagle3ref.trace.passes import Pass
from eagle3ref.trace.sequence import RecordedSequence

_LOGITS_ROWS = 512  # rows whose logits are held at a time


@torch.inference_mode()
def record_in_blocks(
    target: Target, group: Pass, capture_points: Sequence[int], *, final_hidden_state: bool
) -> Iterator[RecordedSequence]:
    """One teacher-forced pass over all sequences, as a server's prefill.

    Args:
        target: the model.
        group: the pass.
        capture_points: residual streams to record.
        final_hidden_state: record it too.
    """
    sequences = group.sequences
    cache = target.new_cache(len(sequences))
    blocks = list(prefill(target, sequences, cache, capture_points=capture_points))
    states = {point: torch.cat([b.aux_hidden_states[point] for b in blocks], 1) for point in capture_points}
    final_states = torch.cat([block.final_hidden_state for block in blocks], 1)
    for i, (prompt, tokens) in enumerate(zip(group.prompts, sequences, strict=True)):
        length = len(tokens)
        final = final_states[i, :length]
        scores = score_rows(target, final, tokens)
        yield RecordedSequence(
            id=prompt.id,
            tokens=tokens,
            prompt_length=len(prompt.tokens),
            aux_hidden_states={point: state[i, :length].cpu() for point, state in states.items()},
            argmax=scores.argmax,
            final_hidden_state=final.cpu() if final_hidden_state else None,
            logprob_gap=scores.logprob_gap,
        )


def score_rows(target: Target, final: Tensor, tokens: Tensor) -> Scores:
    """What the head says of the final states of one sequence, on the CPU.

    Nothing follows the last token: the argmax stands in for what does.

    Args:
        target: the model.
        final: [T, C], after the final norm.
        tokens: int64 [T].
    """
    best, gaps = [], []
    for start in range(0, len(tokens), _LOGITS_ROWS):
        logits = target.logits(final[start : start + _LOGITS_ROWS])
        argmax = argmax_first(logits)
        following = tokens[start + 1 : start + 1 + len(argmax)].to(argmax.device)
        following = torch.cat((following, argmax[len(following) :]))
        # Of one softmax: the normalizer is the same, and drops out.
        top, recorded = (logits.gather(-1, ids[:, None])[:, 0].to(torch.float64) for ids in (argmax, following))
        best.append(argmax.cpu())
        gaps.append((top - recorded).float().cpu())
    return Scores(torch.cat(best), torch.cat(gaps))

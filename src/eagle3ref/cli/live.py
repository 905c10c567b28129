"""The live side of ``crosscheck``: prompts to a running server, and a trace of what it answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.text import Text

from eagle3ref.cli.console import stderr
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.servers import Evidence, Progress, RequestSettings, ServerFacts, collect
from eagle3ref.target import load_target
from eagle3ref.target.generate import Sampling
from eagle3ref.trace import Prompt, Trace, capture, read_prompts
from eagle3ref.trace.format import HEADER_FILE
from eagle3ref.trace.prompts import load_tokenizer, tokenizer_sha256


@dataclass(frozen=True)
class Asked:
    """What a live run was told.

    Args:
        server: its URL.
        journal: folder that keeps every step.
        prompts: file of prompts; None for those of the trace.
        target: folder; None if the trace is there and the prompts are token ids.
        settings: of the requests.
        model: that the server must have; None if any will do.
        max_requests: never more than these, over all runs of the journal; None: one for each prompt, and ``retries``.
        retries: further tries after a failure that may pass, of all prompts together.
        concurrency: requests at a time.
        timeout: seconds for one.
    """

    server: str
    journal: Path
    prompts: Path | None
    target: Path | None
    settings: RequestSettings
    model: str | None
    max_requests: int | None
    retries: int
    concurrency: int
    timeout: float


def is_trace(folder: Path) -> bool:
    """Whether there is one already."""
    return (folder / HEADER_FILE).is_file()


def lacks_answers(trace: Trace, evidence: Evidence) -> bool:
    """Whether it was made of a server's answers, and some have come since: a live run that went on."""
    of_answers = trace.header.sampling.max_new_tokens is None
    return of_answers and any(request.request_id not in trace.ids for request in evidence.requests)


def ask(asked: Asked, trace: Trace | None) -> tuple[Evidence, ServerFacts]:
    """Send the prompts, and say on stderr what came back and what did not.

    Raises:
        Eagle3RefError: no prompts, or as ``collect``.
    """
    prompts = _prompts(asked, trace)
    most = len(prompts) + asked.retries if asked.max_requests is None else asked.max_requests
    whole = f"at most {_number(most, 'request')}, all runs of {asked.journal} together"
    has_tokenizer = asked.target is not None and tokenizer_sha256(asked.target) is not None
    with SequenceProgress(stderr) as progress:
        collection = collect(
            asked.server,
            prompts,
            asked.journal,
            asked.settings,
            model=asked.model,
            max_requests=most,
            retries=asked.retries,
            concurrency=asked.concurrency,
            timeout=asked.timeout,
            tokenizer=load_tokenizer(asked.target) if has_tokenizer and asked.target is not None else None,
            on_server=lambda _: stderr.print(Text(f"asking {_number(len(prompts), 'prompt')}: {whole}")),
            on_request=_bar(progress, len(prompts)),
        )
    sent = f"{_number(collection.sent, 'request')} sent in all"
    stderr.print(Text(f"{collection.answered} of {_number(len(prompts), 'prompt')} answered, {sent}"))
    if collection.stopped:
        stderr.print(Text.assemble(("stopped: ", "bold yellow"), collection.stopped))
    for prompt, why in list(collection.unanswered.items())[:5]:
        stderr.print(Text.assemble((f"{prompt}: ", "bold yellow"), why))
    return Evidence.gather(collection.readings), collection.server


def record_answers(
    folder: Path,
    evidence: Evidence,
    target_folder: Path | None,
    settings: RequestSettings,
    draft: Eagle3Draft,
    device: torch.device,
    dtype: torch.dtype,
) -> Trace:
    """The target on the server's own answers, with all that a diagnosis may ask for.

    That is the neighbours of the draft's capture points, and the last streams: what a server that leaves out capture
    hands over.

    Raises:
        Eagle3RefError: no target, or answers without token ids.
    """
    if target_folder is None:
        raise Eagle3RefError(
            "recording the server's answers",
            found=f"no trace at {folder}, and no --target to record one with",
            expected="a trace of these prompts, or the target's checkpoint folder",
            action="Give --target, or the trace that `eagle3ref capture` made.",
        )
    answered = _answers(evidence)
    target = load_target(target_folder, device=device, dtype=dtype)
    last = target.config.num_layers
    near = {point + shift for point in draft.capture_points for shift in (-1, 0, 1)} | {last}
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("record", len(answered))
        return capture(
            target,
            answered,
            folder,
            capture_points=sorted(point for point in near if 0 <= point <= last),
            max_new_tokens=settings.max_new_tokens,
            sampling=Sampling(settings.temperature, settings.top_p, settings.top_k, settings.seed or 0),
            final_hidden_state=True,
            tokenizer_sha256=tokenizer_sha256(target_folder),
            on_sequence=lambda sequence: advance(len(sequence.answer)),
        )


def _prompts(asked: Asked, trace: Trace | None) -> list[Prompt]:
    if asked.prompts is not None:
        return read_prompts(asked.prompts, asked.target)[0]
    if trace is None:
        raise Eagle3RefError(
            "asking the server",
            found="neither a trace nor --prompts",
            expected="prompts to send",
            action="Give --prompts with a JSONL file, or a trace, whose prompts are sent again.",
        )
    return [Prompt(sequence.id, sequence.tokens[: sequence.prompt_length]) for sequence in trace]


def _answers(evidence: Evidence) -> list[Prompt]:
    answers: dict[str, Prompt] = {}
    for request in evidence.requests:
        if request.request_id is not None and request.prompt_ids and request.output_ids:
            answer = torch.tensor(request.output_ids)
            answers.setdefault(request.request_id, Prompt(request.request_id, torch.tensor(request.prompt_ids), answer))
    if not answers:
        raise Eagle3RefError(
            "recording the server's answers",
            found=f"{len(evidence.requests)} answers, none of them with token ids",
            expected="token ids of prompts and answers",
            action="Ask SGLang's /generate or vLLM's /v1/completions, or record a trace with `capture` first.",
        )
    return list(answers.values())


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _bar(progress: SequenceProgress, total: int) -> Callable[[Progress], None]:
    """A bar that goes on with every answer; failed tries do not move it."""
    advance, seen = progress.begin("ask", total), 0

    def update(state: Progress) -> None:
        nonlocal seen
        while seen < state.answered:
            seen += 1
            advance(0)

    return update

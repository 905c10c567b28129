"""``eagle3ref decode``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.exit_status import DOES_NOT_AGREE
from eagle3ref.cli.options import (
    CapturePoints,
    Device,
    DTypeName,
    KeptMass,
    KeptTokens,
    NumDraftTokens,
    NumSteps,
    OptionalEngine,
    Rule,
    SampledDrafts,
    Seed,
    Temperature,
    TopK,
    asked_rule,
    asked_tree,
    parse_capture_points,
    refuse_flags_before,
    torch_dtype,
    usable_device,
)
from eagle3ref.cli.setup import Setup, set_up
from eagle3ref.decode import Decoded
from eagle3ref.decode import decode as decode_prompt
from eagle3ref.report.decoded import DecodedPrompt, decoded_document, decoded_report
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.target import Target, load_target
from eagle3ref.target.generate import Sampling, generate
from eagle3ref.trace import Prompt, read_prompts
from eagle3ref.trace.prompts import load_tokenizer, tokenizer_sha256
from eagle3ref.verify.coins import DEFAULT_SEED


def decode(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(help="Checkpoint folder of the target.")],
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    prompts: Annotated[Path, typer.Argument(help="JSONL: tokens, text or messages on each line.")],
    num_steps: NumSteps = None,
    topk: TopK = None,
    num_draft_tokens: NumDraftTokens = None,
    engine: OptionalEngine = None,
    rule: Rule = None,
    sampled_drafts: SampledDrafts = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 128,
    temperature: Temperature = 0.0,
    top_p: KeptMass = 1.0,
    top_k: KeptTokens = 0,
    seed: Seed = 0,
    sampling_seed: Annotated[
        int | None, typer.Option(help="Draw as SGLang's deterministic inference does for a request of this seed.")
    ] = None,
    check_lossless: Annotated[
        bool, typer.Option("--check-lossless", help="Hold greedy answers against plain decoding.")
    ] = False,
    capture_points: CapturePoints = None,
    device: Device = "cpu",
    dtype: Annotated[DTypeName, typer.Option(help="Of weights and activations.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Decode prompts with the draft, and the target in the loop."""
    refuse_flags_before(context, target, draft, prompts)
    given, _ = read_prompts(prompts, target)
    sampling = Sampling(temperature, top_p, top_k, seed)
    place, kind = usable_device(device), torch_dtype(dtype)
    if check_lossless and temperature > 0:
        raise typer.BadParameter("--check-lossless compares greedy answers: leave --temperature at 0")
    tree, asked = asked_tree(num_steps, topk, num_draft_tokens), asked_rule(rule, sampled_drafts)
    if asked is not None and temperature == 0:
        stderr.print("note: at temperature 0 every rule is greedy: --rule and --sampled-drafts change nothing")
    model = load_target(target, device=place, dtype=kind)
    points = parse_capture_points(capture_points)
    setup = set_up(context, engine, draft, model, tree, asked, capture_points=points, device=place, dtype=kind)
    if sampling_seed is None and setup.draws_seeded:
        sampling_seed = DEFAULT_SEED
    decoded = _decode(model, setup, given, max_new_tokens, sampling, sampling_seed)
    same = _same_as_plain(model, given, decoded, max_new_tokens) if check_lossless else [None] * len(given)
    texts = _texts(target, decoded)
    ids = [prompt.id for prompt in given]
    answers = [DecodedPrompt(*parts) for parts in zip(ids, decoded, texts, same, strict=True)]
    if as_json:
        typer.echo(json.dumps(decoded_document(answers, setup.tree), indent=1, allow_nan=False))
    else:
        stdout.print(decoded_report(answers, setup.tree))
    if False in same:
        raise typer.Exit(DOES_NOT_AGREE)


def _decode(
    target: Target,
    setup: Setup,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    sampling: Sampling,
    sampling_seed: int | None,
) -> list[Decoded]:
    decoded = []
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("decode", len(prompts))
        for i, prompt in enumerate(prompts):
            decoded.append(
                decode_prompt(
                    target,
                    setup.draft,
                    prompt.tokens,
                    setup.tree,
                    max_new_tokens=max_new_tokens,
                    rule=setup.rule,
                    sampling=sampling,
                    prompt_index=i,
                    sampling_seed=sampling_seed,
                )
            )
            advance(len(decoded[-1].tokens))
    return decoded


def _same_as_plain(
    target: Target, prompts: Sequence[Prompt], decoded: Sequence[Decoded], max_new_tokens: int
) -> list[bool | None]:
    plain = generate(target, [prompt.tokens for prompt in prompts], max_new_tokens=max_new_tokens)
    return [torch.equal(answer.cpu(), other.tokens) for answer, other in zip(plain, decoded, strict=True)]


def _texts(folder: Path, decoded: Sequence[Decoded]) -> list[str | None]:
    """The answers in words, where the target folder has a tokenizer."""
    if tokenizer_sha256(folder) is None:
        return [None] * len(decoded)
    tokenizer = load_tokenizer(folder)
    return [str(tokenizer.decode(answer.tokens.tolist())) for answer in decoded]

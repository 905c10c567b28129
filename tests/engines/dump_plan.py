"""The dumps of hidden states that real engines make: how each server is started, and what it is asked.

Their recordings are in ``golden/dumps``, under the engine's and the dump's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engines.plan import OUTPUT_IDS, Engine

LAYER_IDS = (4, 1, 3)  # SGLang adds 1 for this target, and hands them over in the order of the layers
VLLM_LAYER_IDS = (5, 2, 8, 4)  # as they are; 8 is what enters the final norm
PREFILL = 16  # tokens that SGLang computes at a time
AUX = (
    "--enable-return-aux-hidden-states",
    "--speculative-algorithm=EAGLE3",
    "--return-aux-hidden-state-layer-ids",
    *map(str, LAYER_IDS),
)
FULL = ("--enable-return-hidden-states",)


@dataclass(frozen=True)
class Request:
    """One request of a dump.

    Args:
        prompt: which of the prompts; several make one request with a list of answers.
        length: tokens of it; all when None.
        max_new_tokens: of the answer.
        states: ``return_hidden_states`` of the request.
    """

    prompt: int | tuple[int, ...]
    length: int | None = None
    max_new_tokens: int = 5
    states: bool | str = True


@dataclass(frozen=True)
class DumpRun:
    """One start of an engine that dumps.

    Args:
        engine: which.
        name: of the dump, unique for its engine.
        flags: as typed.
        draft: whether the draft runs, with these ids in its config.json; None without one.
        algorithm: ``--speculative-algorithm`` of that draft.
        dtype: of the target.
        hook: what ``sglang_cpu/dump_hook.py`` leaves, a folder of files or a list in one file for each forward; nothing
            when empty. What the responses say is kept then without states.
        requests: one after the other.
    """

    engine: Engine
    name: str
    flags: tuple[str, ...] = ()
    draft: tuple[int, ...] | None = None
    algorithm: str = "EAGLE3"
    dtype: str = "float32"
    hook: Literal["", "files", "lists"] = ""
    requests: tuple[Request, ...] = (Request(1), Request(5, length=21))

    def __str__(self) -> str:
        return f"dumps/{self.engine}/{self.name}"


def _sglang(name: str, *flags: str, **rest: Any) -> DumpRun:
    return DumpRun("sglang", name, flags, **rest)


# A prompt that needs two prefills, the same again (its prefix is cached then), one token only, and two in one request.
AUX_REQUESTS = (
    Request(1),
    Request(5, length=21),
    Request(5, length=21, max_new_tokens=3),
    Request(13, max_new_tokens=1),
    Request((11, 12), max_new_tokens=2),
)

DUMPS: tuple[DumpRun, ...] = (
    _sglang("aux", *AUX, requests=AUX_REQUESTS),
    _sglang("aux-bfloat16", *AUX, dtype="bfloat16", requests=(Request(13),)),
    _sglang("error", *AUX, requests=(Request(13, states="last"),)),  # which /generate does not take
    _sglang("draft", *FULL, draft=OUTPUT_IDS),
    _sglang("eagle-flag", *FULL, draft=OUTPUT_IDS, algorithm="EAGLE", requests=(Request(13),)),
    _sglang("final", *FULL, requests=(Request(13),)),
    _sglang("hook", *AUX, hook="files", requests=(Request(1, max_new_tokens=3),)),
    _sglang("hook-lists", *AUX, hook="lists", requests=(Request(5, length=21, max_new_tokens=3),)),
    _sglang("hook-draft", *FULL, draft=OUTPUT_IDS, hook="files", requests=(Request(5, length=6, max_new_tokens=7),)),
    DumpRun("vllm", "hidden-states", requests=(Request(1), Request(5, length=21), Request(13))),
)

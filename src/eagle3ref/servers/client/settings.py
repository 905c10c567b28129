"""How the answers are to be generated, and how each kind of server is asked for that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client.facts import ServerFacts

# Said aloud, since a server takes what a request leaves out from the model's generation_config.json or from its launch.
_NO_PENALTIES = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """The same for every request of a run.

    Args:
        max_new_tokens: of each answer.
        temperature: 0 is greedy.
        top_p: nucleus kept; 1 keeps all.
        top_k: tokens kept; 0 keeps all.
        seed: request i asks for ``seed + i``; None leaves it to the server. SGLang heeds it with
            ``--enable-deterministic-inference`` only.
        ignore_eos: generate on past the end-of-sequence token.
        stop_token_ids: further tokens that end an answer.

    Raises:
        Eagle3RefError: a value that no server takes.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._require("max_new_tokens", self.max_new_tokens >= 1, "at least 1")
        self._require("temperature", 0 <= self.temperature < float("inf"), "0 or more")
        self._require("top_p", 0 < self.top_p <= 1, "above 0, at most 1")
        self._require("top_k", self.top_k >= 0, "0 or more")

    def to_dict(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {**asdict(self), "stop_token_ids": list(self.stop_token_ids)}

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise Eagle3RefError(
                "reading the settings of the requests",
                found=f"{name} = {getattr(self, name)!r}",
                expected=expected,
                action=f"Correct {name}.",
            )


def request_body(facts: ServerFacts, settings: RequestSettings, prompt_ids: list[int], index: int) -> dict[str, Any]:
    """The JSON of one request.

    Args:
        facts: of the server that gets it.
        settings: of the run.
        prompt_ids: token ids.
        index: of the prompt, which its seed depends on.
    """
    seed = None if settings.seed is None else settings.seed + index
    sampling: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p}
    own: dict[str, Any] = {
        "top_k": settings.top_k or -1,
        "ignore_eos": settings.ignore_eos,
        "skip_special_tokens": False,
        **_NO_PENALTIES,
    }
    if settings.stop_token_ids:
        own["stop_token_ids"] = list(settings.stop_token_ids)
    if facts.endpoint == "/generate":
        sampling |= {"max_new_tokens": settings.max_new_tokens, **own, **_seeded("sampling_seed", seed)}
        return {"input_ids": prompt_ids, "sampling_params": sampling, "stream": False}
    body = {"prompt": prompt_ids, "max_tokens": settings.max_new_tokens, **sampling, **_seeded("seed", seed)}
    if facts.served_model_name is not None:
        body["model"] = facts.served_model_name
    if facts.engine == "openai":
        return body  # only OpenAI's own parameters are safe to send to a server of unknown make
    details = {"return_spec_tokens_details": True} if facts.engine == "sglang" else {}
    return {**body, **own, "return_token_ids": True, **details}


def _seeded(name: str, seed: int | None) -> dict[str, int]:
    return {} if seed is None else {name: seed}

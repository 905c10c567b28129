"""Any causal language model of the transformers library whose attention takes a mask, as a ``Target``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from eagle3ref.config import TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import KVCache, Prefix, Rows
from eagle3ref.target.base import TargetCache, TargetOutput
from eagle3ref.target.inputs import checked_inputs
from eagle3ref.target.transformers_anatomy import Anatomy, check_against_plain_runs, config_of_model

_LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError)


class TransformersTarget:
    """A ``Target`` around a transformers model (written against 5.17 to 5.24), whose code is run as it is.

    Hooks take the states that are asked for and keep no others. Its attention is ``eager`` or ``sdpa``. On the way in,
    three tokens show that the model obeys mask, positions and cache, and that its logits are understood.

    Args:
        model: the causal LM; it is put into evaluation mode.
        config: what every target has; read from ``model.config`` when None.

    Raises:
        Eagle3RefError: a model that does not fit: sliding windows, linear attention, no mask, unknown logits.
    """

    def __init__(self, model: PreTrainedModel, config: TargetConfig | None = None) -> None:
        self.model = model.eval()
        self.config = config_of_model(model) if config is None else config
        self._anatomy = Anatomy.of(model)
        check_against_plain_runs(self, model)  # an unfit model would only show as a lower acceptance

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16
    ) -> TransformersTarget:
        """Load a checkpoint folder. Nothing is fetched, and no code of the folder is run.

        Raises:
            Eagle3RefError: no checkpoint there, a damaged one, missing or unknown tensors, an architecture that this
                release of transformers does not have, or a model that does not fit.
        """
        doing = f"loading {folder} through transformers"
        config = TargetConfig.from_folder(folder)
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                # A plain loop over the experts; the library's own choice knows no fp64.
                experts_implementation="eager",
            )
        except _LOADING_ERRORS as error:
            raise Eagle3RefError(
                doing,
                found=f"{type(error).__name__}: {error}",
                expected="a complete checkpoint of an architecture that the installed transformers has",
                action="Check the files; if the architecture is newer than the library, update transformers, or let "
                "the engine that serves the model dump its states, and take those: eagle3ref import.",
            ) from error
        model, report = loaded
        # The library only logs these: missing weights stay random, and the run goes on.
        wrong = [f"{kind.removesuffix('_keys')} {name}" for kind in report for name in sorted(map(str, report[kind]))]
        if wrong:
            raise Eagle3RefError(
                doing,
                found=f"{len(wrong)} tensor(s): {', '.join(wrong[:4])}{', …' if len(wrong) > 4 else ''}",
                expected="exactly the tensors that config.json describes",
                action="config.json and the weights do not belong together, or the weights are quantized in a way that "
                "this model class does not read.",
            )
        return cls(model.to(device).requires_grad_(False), config)

    def new_cache(self, batch_size: int) -> KVCache:
        """An empty cache; a row is whatever the model's attention puts into its own cache."""
        return KVCache(self.config.num_layers, batch_size, self.embedding().device)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: TargetCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        capture_points: Sequence[int] = (),
    ) -> TargetOutput:
        """See ``Target.forward``."""
        inputs = checked_inputs(self.config, tokens, cache, positions, mask, capture_points)
        prefixes = None if inputs.cache is None else inputs.cache.prefixes()
        rows = _filled(prefixes)
        with _recording(self._anatomy.layers, capture_points) as states:
            output: Any = self._anatomy.decoder(
                input_ids=tokens,
                position_ids=inputs.positions,
                attention_mask=_additive(inputs.mask, prefixes, self.embedding().dtype),
                use_cache=cache is not None,
                **{self._anatomy.cache_argument: None if cache is None else rows},
            )
        if inputs.cache is not None:
            inputs.cache.offer(_newest(rows, tokens.shape[1]))
        return TargetOutput({point: states[point] for point in capture_points}, output.last_hidden_state)

    def logits(self, final_hidden_state: Tensor) -> Tensor:
        """See ``Target.logits``; scaling and soft-capping of the architecture included."""
        logits: Tensor = self._anatomy.head(final_hidden_state) * self._anatomy.logit_factor
        cap = self._anatomy.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def embedding(self) -> Tensor:
        """See ``Target.embedding``."""
        return self._anatomy.embedding.weight

    def lm_head(self) -> Tensor:
        """See ``Target.lm_head``."""
        return self._anatomy.head.weight


@contextmanager
def _recording(layers: nn.ModuleList, points: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """While open, keep the residual stream entering each of these layers; ``len(layers)``: leaving the last one."""
    states: dict[int, Tensor] = {}

    def keep_input(point: int) -> Any:
        def hook(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states[point] = args[0] if args else kwargs["hidden_states"]

        return hook

    def keep_output(_layer: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        states[len(layers)] = output[0] if isinstance(output, tuple) else output

    with ExitStack() as hooks:
        for point in points:
            if point < len(layers):
                hooks.enter_context(layers[point].register_forward_pre_hook(keep_input(point), with_kwargs=True))
            else:
                hooks.enter_context(layers[-1].register_forward_hook(keep_output))
        yield states


def _additive(mask: Tensor, prefixes: list[Prefix] | None, dtype: torch.dtype) -> Tensor:
    """mask bool [B, Q, Q] over the new rows -> [B, 1, Q, K + Q] with 0 and the lowest number.

    Eager attention adds whatever it is given, so a bool mask would hide nothing there.
    """
    seen = mask.unsqueeze(1)
    if prefixes is not None:
        committed = prefixes[0].mask  # [B, 1, 1, K], False behind the end of shorter sequences
        seen = torch.cat((committed.expand(*seen.shape[:-1], committed.shape[-1]), seen), -1)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)


def _filled(prefixes: list[Prefix] | None) -> DynamicCache:
    """The library's own cache, holding the committed rows; it keeps them as [B, heads, K, D]."""
    cache = DynamicCache()
    for i, (rows, _) in enumerate(prefixes or ()):
        keys, values = (rearrange(part, "b k h d -> b h k d") for part in rows)
        cache.update(keys, values, i)
    return cache


def _newest(cache: DynamicCache, num_rows: int) -> list[Rows]:
    """Per layer, the rows that this forward added, [B, 1, Q, heads, D]."""
    return [Rows(*(rearrange(kept[:, :, -num_rows:], "b h q d -> b 1 q h d") for kept in layer[:2])) for layer in cache]

"""Draft-like checkpoints that are not EAGLE-3 heads: recognised by name, so that none is half-loaded."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

CAPTURE_SWITCH = "eagle_config.use_aux_hidden_state"
_NEVER = r"(?!)"


@dataclass(frozen=True)
class _OtherNetwork:
    """How one kind of checkpoint is recognised. Any one of the marks is enough.

    Args:
        name: for messages.
        advice: what to do with such a file.
        architectures: pattern of ``architectures[0]``.
        settings: key of config.json (``a.b`` is b inside a) -> pattern of its value.
        tensors: pattern found in the name of a tensor.
        without: a pattern that no tensor name may contain for ``tensors`` to count.
        despite: a tensor that outweighs ``settings``, which wait until the names are known.
    """

    name: str
    advice: str
    architectures: str = _NEVER
    settings: Mapping[str, str] = field(default_factory=dict)
    tensors: str = _NEVER
    without: str = _NEVER
    despite: str = _NEVER

    def evidence(self, fields: JsonFields, names: Collection[str] | None) -> list[str]:
        """The marks that are there, in words."""
        if self.despite != _NEVER and (names is None or any(re.search(self.despite, name) for name in names)):
            return []
        names = names or ()
        found = []
        if re.fullmatch(self.architectures, fields.architecture):
            found.append(f"architectures = {fields.architecture}")
        for key, pattern in self.settings.items():
            value = _setting(fields, key)
            if value is not None and re.fullmatch(pattern, str(value)):
                found.append(f"{key} = {value}")
        matching = sorted(name for name in names if re.search(self.tensors, name))
        if matching and not any(re.search(self.without, name) for name in names):
            found.append(f"tensor {matching[0]}")
        return found


_RUN_ELSEWHERE = "Run it in an engine that knows this kind; an EAGLE-3 forward of it would only accept less."

# In order: a kind that is built on another one stands before it.
_OTHER_NETWORKS = (
    _OtherNetwork(
        "a P-EAGLE draft, which proposes all depths in one pass",
        _RUN_ELSEWHERE,
        architectures=r"P[Ee]agle.*|PEAGLE.*",
        settings={"speculators_model_type": "peagle", "model_type": "peagle", "parallel_drafting": "True"},
        tensors=r"(^|\.)mask_hidden$",
    ),
    _OtherNetwork(
        "an EAGLE head with parallel draft heads",
        _RUN_ELSEWHERE,
        settings={"eagle_config.parallel_draft_step": r"(?!1$)\d+"},
        tensors=r"parallel_draft_heads\.",
    ),
    _OtherNetwork(
        "a DFlash, DSpark or Domino draft, which fills a block at once",
        _RUN_ELSEWHERE,
        architectures=r".*(DFlash|DSpark|Domino|XPress|Xpress).*",
        settings={"speculators_model_type": "dflash2?|dspark|xpress", "dflash_config": r"\{.*\}"},
    ),
    _OtherNetwork(
        "a Kimi-K3 network (attention without rope and with an output gate, SiTU MLP)",
        "That forward is not implemented; without its gate and activation a draft would be another network.",
        architectures=r".*KimiK3.*",
        settings={"mla_use_nope": "True", "mla_use_output_gate": "True", "model_type": r"kimi_k3.*"},
        tensors=r"self_attn\.g_proj\.",
    ),
    _OtherNetwork(
        "a multi-token-prediction (MTP, NextN) layer",
        "It reads one final state and has no fc over captured layers. Serve it as MTP.",
        architectures=r".*(NextN|MTP).*",
        settings={
            "speculators_model_type": "mtp",
            "model_type": r".*mtp.*",
            "eagle_config.use_mtp_layernorm": "True",
        },
        tensors=r"(^|\.)(enorm|hnorm|eh_proj)\.|^mtp\.",
        without=r"(^|\.)layers\.[1-5]\.",  # a whole model that brings such a layer is a model
    ),
    _OtherNetwork(
        "Medusa heads",
        _RUN_ELSEWHERE,
        architectures=r".*Medusa.*",
        settings={"model_type": "medusa", "medusa_num_heads": r"\d+"},
        tensors=r"medusa_heads?\.|^\d+\.\d+\.linear\.weight$",
    ),
    _OtherNetwork(
        "an MLP speculator",
        _RUN_ELSEWHERE,
        architectures=r"MLPSpeculator.*",
        settings={"model_type": "mlp_speculator"},
    ),
    _OtherNetwork(
        "an EAGLE-1 or EAGLE-2 draft (HASS has the same network)",
        "It reads one final state and has no fc over captured layers. On SGLang its flag is EAGLE, not EAGLE3.",
        architectures=r".*ForCausalLMEagle|Eagle(Llama|MiniCPM|Mistral3?|DeepSeekMTP)ForCausalLM|EAGLEModel"
        r"|EagleSpeculator",
        settings={"speculators_model_type": "eagle", "model_type": "eagle"},
        tensors=r"(^|\.)fc\.weight$",
        without=r"hidden_norm|input_layernorm|embeds_norm",  # its only layer starts without a norm
    ),
    _OtherNetwork(
        "a head over one final state, as EAGLE-1 and EAGLE-2 drafts are",
        "It has no fc over captured layers. If yours has one, give its weights too, or take the key out.",
        settings={CAPTURE_SWITCH: "False"},
        despite=r"(^|\.)fc\.weight$",  # nothing but captured states needs it beside the norms of an EAGLE-3 layer
    ),
    _OtherNetwork(
        "a whole language model",
        "Check that this folder is a draft, not the target.",
        tensors=r"layers\.\d+\.\w+\.",
        without=r"(^|\.)fc\.weight$|hidden_norm|midlayer",
    ),
)


def refuse_other_networks(fields: JsonFields, names: Collection[str] | None) -> None:
    """Refuse what is recognised as something else than an EAGLE-3 draft.

    Args:
        fields: config.json.
        names: of the tensors, as stored; empty when nobody will look at them, None when that is still to come.

    Raises:
        Eagle3RefError: names the kind and the evidence for it.
    """
    for network in _OTHER_NETWORKS:
        if evidence := network.evidence(fields, names):
            raise Eagle3RefError(
                f"reading {fields.where} as an EAGLE-3 draft",
                found=f"{network.name}: {', '.join(evidence)} (architectures {fields.values.get('architectures')})",
                expected="an EAGLE-3 draft: fc over several captured states, then a layer that is 2 x hidden_size wide",
                action=network.advice,
            )


def _setting(fields: JsonFields, dotted: str) -> Any:
    value: Any = fields.values
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value

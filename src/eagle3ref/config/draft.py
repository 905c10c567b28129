"""What config.json says of an EAGLE-3 draft."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from eagle3ref.config.draft_family import (
    NEMO_ARCHITECTURES,
    SGLANG_ARCHITECTURE,
    SPECULATORS_ARCHITECTURES,
    VLLM_ARCHITECTURES,
    DraftFamily,
    draft_family,
)
from eagle3ref.config.draft_refusals import refuse_other_networks
from eagle3ref.config.draft_speculators import flatten_speculators, sliding_windows
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.config.layers import GQAConfig, MLAConfig
from eagle3ref.errors import Eagle3RefError

MLA_ARCHITECTURES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
ARCHITECTURES = (
    "LlamaForCausalLM",
    SGLANG_ARCHITECTURE,
    *MLA_ARCHITECTURES,
    *SPECULATORS_ARCHITECTURES,
    *NEMO_ARCHITECTURES,
    *VLLM_ARCHITECTURES,
)

CAPTURE_IDS_KEY = "eagle_aux_hidden_state_layer_ids"  # in eagle_config or at top level
# Both, and the nested ids are one less: the same streams as SGLang and as vLLM number them, in one file.
BOTH_ENGINES_IDS_KEY = f"{CAPTURE_IDS_KEY} (one less in eagle_config)"
# What export_draft writes beside the ids of an engine, whose numbering may depend on the target.
EXPORTED_POINTS_KEY = "eagle3ref.capture_points"

FinalNorm = Literal["head", "head+state", "none"]
FINAL_NORM_MEANING: dict[FinalNorm, str] = {
    "head": "EAGLE-3: the head reads the normed stream, the next step the raw one",
    "head+state": "EAGLE-3.1: head and next step read the normed stream",
    "none": "SpecForge's norm_output = false: head and next step read the raw stream",
}

# `eagle_config` keys that describe another network than the plain EAGLE-3 head, and the value that means "plain".
_PLAIN_EAGLE_CONFIG = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "eh_proj_before_attn": False,
}
_LARGEST_VOCABULARY = 2**24  # one number for each id is made before the tensors show whether the file tells the truth
_MOST_STATES = 2**10  # one norm for each is made before the tensors do
_ANOTHER_NETWORK = "This draft is another network; running it as a plain head would only lower the acceptance."


@dataclass(frozen=True)
class DraftConfig:
    """An EAGLE-3 draft head (arXiv 2503.01840).

    Args:
        architecture: ``architectures[0]``.
        vocab_size: V, the target's vocabulary.
        draft_vocab_size: Vd, rows of the draft's lm_head.
        shares_target_lm_head: ``draft_vocab_size`` is absent or null, which SGLang reads as "use the target's head".
        num_aux_hidden_states: A, how many capture points ``fc`` fuses.
        capture_ids: the ids as written in the file, in whichever numbering; None when the file gives none.
        capture_ids_key: where they stood.
        final_norm: who reads the stream after the final norm, see ``FINAL_NORM_MEANING``.
        final_norm_key: the key of the file that says so; "" when none does.
        fc_norm: one RMSNorm per aux hidden state before ``fc``.
        norm_before_fc: one RMSNorm over the whole concatenation before ``fc``.
        norm_before_residual: the residual is the normed fused state (speculators) instead of the raw one.
        capture_is_off: the file tells engines to capture nothing; if there is an fc, its training says otherwise.
        hidden_double_norm: the state passes ``input_layernorm`` before ``hidden_norm``, as modelopt's Hugging Face
            trainer has done since its PR 689. No file says so; it is an option to measure with.
        logit_scale: factor on the draft's logits (vLLM).
        layer_windows: the sliding window of each layer; None, and a layer that is not listed, has none.
        family: who wrote the file, as far as it tells, and by which mark.
    """

    architecture: str
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    shares_target_lm_head: bool
    rms_norm_eps: float
    max_position_embeddings: int
    attention: GQAConfig | MLAConfig
    num_aux_hidden_states: int = 3
    capture_ids: tuple[int, ...] | None = None
    capture_ids_key: str = ""
    tie_word_embeddings: bool = False
    fc_bias: bool = False
    mlp_bias: bool = False
    final_norm: FinalNorm = "head"
    final_norm_key: str = ""
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    hidden_double_norm: bool = False
    logit_scale: float = 1.0
    layer_windows: tuple[int | None, ...] = ()
    capture_is_off: bool = False
    family: DraftFamily = "unknown"
    family_mark: str = ""

    @classmethod
    def from_folder(cls, folder: str | Path, tensor_names: Collection[str] = ()) -> DraftConfig:
        """Read ``config.json`` of a draft folder.

        Args:
            folder: of the draft.
            tensor_names: as stored (``Weights.names``). They tell families, biases and query norms apart that
                config.json alone does not.

        Raises:
            Eagle3RefError: not an EAGLE-3 draft, a variant that is not implemented, or a missing key.
        """
        fields = JsonFields.read(Path(folder) / "config.json")
        refuse_other_networks(fields, tensor_names)
        architecture = _architecture(fields)
        family, mark = draft_family(fields, tensor_names)
        fields = flatten_speculators(fields)
        eagle = fields.object("eagle_config") or JsonFields({}, f"{fields.where}: eagle_config")
        eagle.require(_PLAIN_EAGLE_CONFIG, "the plain EAGLE-3 head", _ANOTHER_NETWORK)
        fields.require({"hidden_act": "silu"}, "the plain EAGLE-3 layer", _ANOTHER_NETWORK)
        capture_ids, key = _capture_ids(fields, eagle)
        final_norm, final_norm_key = _final_norm(fields, eagle)
        hidden_size = fields.size("hidden_size")
        vocab_size = fields.size("vocab_size", highest=_LARGEST_VOCABULARY)
        draft_vocab_size = fields.optional_size("draft_vocab_size")
        return cls(
            architecture=architecture,
            hidden_size=hidden_size,
            target_hidden_size=fields.optional_size("target_hidden_size") or hidden_size,
            # Llama 4's dense width; its plain intermediate_size is that of an expert.
            intermediate_size=fields.optional_size("intermediate_size_mlp") or fields.size("intermediate_size"),
            vocab_size=vocab_size,
            draft_vocab_size=vocab_size if draft_vocab_size is None else draft_vocab_size,
            shares_target_lm_head=draft_vocab_size is None,
            rms_norm_eps=fields.number("rms_norm_eps"),
            max_position_embeddings=fields.size("max_position_embeddings", 2**31 - 1),
            attention=_attention(fields, architecture, family, tensor_names),
            num_aux_hidden_states=fields.size(
                "num_aux_hidden_states", len(capture_ids) if capture_ids else 3, highest=_MOST_STATES
            ),
            capture_ids=capture_ids,
            capture_ids_key=key,
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            fc_bias=fields.flag("bias"),
            mlp_bias=fields.flag("mlp_bias"),
            final_norm=final_norm,
            final_norm_key=final_norm_key,
            fc_norm=fields.flag("fc_norm") or fields.flag("use_aux_norm"),
            norm_before_fc=eagle.flag("norm_before_fc", fields.flag("norm_before_fc")),
            norm_before_residual=fields.flag("norm_before_residual"),
            logit_scale=fields.number("logit_scale", 1.0),
            layer_windows=sliding_windows(fields) if family in ("speculators", "vLLM") else (),
            capture_is_off=not eagle.flag("use_aux_hidden_state", True),
            family=family,
            family_mark=mark,
        )

    @property
    def norm_output(self) -> bool:
        """Whether the recurrent state is the normed stream (EAGLE-3.1)."""
        return self.final_norm == "head+state"

    def layer_attention(self, index: int) -> GQAConfig | MLAConfig:
        """The attention of one layer, with its own window."""
        window = self.layer_windows[index] if index < len(self.layer_windows) else None
        return self.attention if isinstance(self.attention, MLAConfig) else replace(self.attention, window=window)

    def check_target(self, hidden_size: int, vocab_size: int, doing: str) -> None:
        """Refuse a target that this draft was not trained for.

        Raises:
            Eagle3RefError: the target has another width or vocabulary; ``doing`` opens the message.
        """
        if (hidden_size, vocab_size) != (self.target_hidden_size, self.vocab_size):
            raise Eagle3RefError(
                doing,
                found=f"a target {hidden_size} wide with {vocab_size} tokens",
                expected=f"{self.target_hidden_size} wide with {self.vocab_size} tokens, as the draft was trained for",
                action="This draft belongs to another target.",
            )


def _architecture(fields: JsonFields) -> str:
    name = fields.architecture
    if name not in ARCHITECTURES:
        raise Eagle3RefError(
            f"reading {fields.where} as an EAGLE-3 draft",
            found=f"architectures = {fields.values.get('architectures')}",
            expected=f"one of {', '.join(ARCHITECTURES)}",
            action="Check that this folder is a draft, not the target, and that it is EAGLE-3.",
        )
    return name


def _attention(
    fields: JsonFields, architecture: str, family: DraftFamily, names: Collection[str]
) -> GQAConfig | MLAConfig:
    # NeMo writes LlamaEagle3DraftModel for its MLA drafts too.
    if architecture in MLA_ARCHITECTURES or (family == "NeMo" and fields.values.get("kv_lora_rank") is not None):
        attention = MLAConfig.from_json(fields)
        # NeMo trains without YaRN's temperature in the softmax scale (Automodel, draft_deepseek.py, 2026-08).
        return replace(attention, rope=replace(attention.rope, mscale_all_dim=0.0)) if family == "NeMo" else attention
    # Of the flat families, model_type is the target's and says nothing of the draft's layer.
    is_qwen3 = architecture == "Eagle3Qwen3ForCausalLM" or (
        family == "speculators" and fields.text("model_type", "") == "qwen3"
    )
    stored = {match[1] for name in names if (match := re.search(r"self_attn\.(\w+)\.(?:bias|weight)$", name))}
    biased = {match[1] for name in names if (match := re.search(r"self_attn\.(\w+)\.bias$", name))}
    return GQAConfig.from_json(fields, qk_norm=is_qwen3 or bool({"q_norm", "k_norm"} & stored), biased=biased)


def _capture_ids(fields: JsonFields, eagle: JsonFields) -> tuple[tuple[int, ...] | None, str]:
    own = fields.object("eagle3ref")
    if own is not None and (points := own.integers("capture_points")) is not None:
        return points, EXPORTED_POINTS_KEY
    nested, flat = eagle.integers(CAPTURE_IDS_KEY), fields.integers(CAPTURE_IDS_KEY)
    if nested is not None and flat is not None and nested == tuple(layer - 1 for layer in flat) != ():
        return flat, BOTH_ENGINES_IDS_KEY
    if nested is not None and flat is not None and nested != flat:
        raise Eagle3RefError(
            f"reading the capture ids of {fields.where}",
            found=f"{list(nested)} in eagle_config and {list(flat)} at top level",
            expected="one list, the same list twice, or ids one less in eagle_config, as SGLang and vLLM number them",
            action="Remove the wrong one: SGLang reads eagle_config, vLLM the top level.",
        )
    if nested is not None:
        return nested, f"eagle_config.{CAPTURE_IDS_KEY}"
    return flat, CAPTURE_IDS_KEY if flat is not None else ""


def _final_norm(fields: JsonFields, eagle: JsonFields) -> tuple[FinalNorm, str]:
    """``norm_output`` is read as EAGLE-3.1 means it, whoever wrote it: no mark in a file proves SpecForge's meaning."""
    for place, key, where in ((eagle, "return_hidden_post_norm", "eagle_config."), (fields, "norm_output", "")):
        if place.flag(key):
            return "head+state", f"{where}{key} = true"
    return "head", "norm_output = false" if fields.values.get("norm_output") is False else ""

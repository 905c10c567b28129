"""What config.json says of an EAGLE-3 draft."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.config.layers import GQAConfig, MLAConfig
from eagle3ref.errors import Eagle3RefError

GQA_ARCHITECTURES = ("LlamaForCausalLM", "LlamaForCausalLMEagle3")
MLA_ARCHITECTURES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")

# `eagle_config` keys that describe another network than the plain EAGLE-3 head, and the value that means "plain".
_PLAIN_EAGLE_CONFIG = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "eh_proj_before_attn": False,
}
_LARGEST_VOCABULARY = 2**24  # one number for each id is made before the tensors show whether the file tells the truth
_PLAIN_LAYER = {"hidden_act": "silu", "logit_scale": 1.0}
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
        norm_output: the recurrent state is taken after the final norm (EAGLE-3.1) instead of before it.
        fc_norm: one RMSNorm per aux hidden state before ``fc``.
        norm_before_fc: one RMSNorm over the whole concatenation before ``fc``.
        norm_before_residual: the residual is the normed fused state (speculators) instead of the raw one.
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
    norm_output: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False

    @classmethod
    def from_folder(cls, folder: str | Path) -> DraftConfig:
        """Read ``config.json`` of a draft folder.

        Raises:
            Eagle3RefError: not an EAGLE-3 draft, a variant that is not implemented, or a missing key.
        """
        fields = JsonFields.read(Path(folder) / "config.json")
        architecture = _architecture(fields)
        eagle = fields.object("eagle_config") or JsonFields({}, f"{fields.where}: eagle_config")
        eagle.require(_PLAIN_EAGLE_CONFIG, "the plain EAGLE-3 head", _ANOTHER_NETWORK)
        fields.require(_PLAIN_LAYER, "the plain EAGLE-3 layer", _ANOTHER_NETWORK)
        capture_ids, key = _capture_ids(fields, eagle)
        hidden_size = fields.size("hidden_size")
        vocab_size = fields.size("vocab_size", highest=_LARGEST_VOCABULARY)
        draft_vocab_size = fields.optional_size("draft_vocab_size")
        return cls(
            architecture=architecture,
            hidden_size=hidden_size,
            target_hidden_size=fields.optional_size("target_hidden_size") or hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            vocab_size=vocab_size,
            draft_vocab_size=vocab_size if draft_vocab_size is None else draft_vocab_size,
            shares_target_lm_head=draft_vocab_size is None,
            rms_norm_eps=fields.number("rms_norm_eps"),
            max_position_embeddings=fields.size("max_position_embeddings", 2**31 - 1),
            attention=_attention(fields, architecture),
            num_aux_hidden_states=fields.size("num_aux_hidden_states", len(capture_ids) if capture_ids else 3),
            capture_ids=capture_ids,
            capture_ids_key=key,
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            fc_bias=fields.flag("bias"),
            mlp_bias=fields.flag("mlp_bias"),
            norm_output=fields.flag("norm_output") or eagle.flag("return_hidden_post_norm"),
            fc_norm=fields.flag("fc_norm") or fields.flag("use_aux_norm"),
            norm_before_fc=eagle.flag("norm_before_fc", fields.flag("norm_before_fc")),
            norm_before_residual=fields.flag("norm_before_residual"),
        )

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
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else ""
    known = (*GQA_ARCHITECTURES, *MLA_ARCHITECTURES)
    if name not in known:
        raise Eagle3RefError(
            f"reading {fields.where} as an EAGLE-3 draft",
            found=f"architectures = {names}",
            expected=f"one of {', '.join(known)}",
            action="Check that this folder is a draft, not the target, and that it is EAGLE-3.",
        )
    return str(name)


def _attention(fields: JsonFields, architecture: str) -> GQAConfig | MLAConfig:
    return MLAConfig.from_json(fields) if architecture in MLA_ARCHITECTURES else GQAConfig.from_json(fields)


def _capture_ids(fields: JsonFields, eagle: JsonFields) -> tuple[tuple[int, ...] | None, str]:
    key = "eagle_aux_hidden_state_layer_ids"
    nested, flat = eagle.integers(key), fields.integers(key)
    if nested is not None and flat is not None and nested != flat:
        raise Eagle3RefError(
            f"reading the capture ids of {fields.where}",
            found=f"{list(nested)} in eagle_config and {list(flat)} at top level",
            expected="one list, or the same list twice",
            action="Remove the wrong one: SGLang reads eagle_config, vLLM the top level.",
        )
    if nested is not None:
        return nested, f"eagle_config.{key}"
    return flat, key if flat is not None else ""

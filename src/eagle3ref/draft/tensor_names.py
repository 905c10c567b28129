"""One name for each tensor of a draft, whatever its writer called it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from eagle3ref.errors import Eagle3RefError

# Spellings of one tensor, in the order in which they are undone.
_RENAMES = (
    (re.compile(r"^((model|draft_model|eagle_module)\.)+"), ""),
    (re.compile(r"^midlayer\.(\d+)\."), r"layers.\1."),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
    # modelopt before its unified export
    (re.compile(r"^eagle_lm_head\."), "lm_head."),
    (re.compile(r"^input_embeds_norm\."), "layers.0.input_layernorm."),
    (re.compile(r"^hidden_norm\."), "layers.0.hidden_norm."),
    # In a layer after the first, SGLang's name of the norm before attention is hidden_norm, vLLM's input_layernorm.
    (re.compile(r"^(layers\.[1-9]\d*)\.hidden_norm\."), r"\1.input_layernorm."),
)
# Made again from config.json, or used in speculators' training only.
_NOT_OF_THE_DRAFT = re.compile(r"rotary_emb\.inv_freq$|^verifier_")
_LAYER = re.compile(r"layers\.(\d+)\.")


def plain_names(stored: Iterable[str], where: str) -> dict[str, str]:
    """Plain name -> stored name, of every tensor that belongs to the draft.

    Args:
        stored: names as the files have them.
        where: the checkpoint, for messages.

    Raises:
        Eagle3RefError: two tensors with one plain name, e.g. both norms before the attention of a later layer.
    """
    names: dict[str, str] = {}
    for name in sorted(stored):
        plain = name
        for pattern, replacement in _RENAMES:
            plain = pattern.sub(replacement, plain)
        if _NOT_OF_THE_DRAFT.search(plain):
            continue
        if plain in names:
            raise Eagle3RefError(
                f"loading draft {where}",
                found=f"two tensors for {plain}: {names[plain]} and {name}",
                expected="one",
                action="Remove the one that was not trained.",
            )
        names[plain] = name
    return names


def num_layers(plain: Iterable[str]) -> int:
    """Decoder layers, counted: config.json often gives the target's. A gap ends as missing and unknown tensors."""
    return max(1, len({match[1] for name in plain if (match := _LAYER.match(name))}))

"""Who wrote a draft checkpoint, as far as its own marks tell."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from eagle3ref.config.json_fields import JsonFields

DraftFamily = Literal["official", "SpecForge", "modelopt", "TorchSpec", "speculators", "NeMo", "vLLM", "unknown"]

SPECULATORS_ARCHITECTURES = ("Eagle3Speculator", "Eagle3DraftModel")
NEMO_ARCHITECTURES = (
    "LlamaEagle3DraftModel",
    "DeepseekV3Eagle3DraftModel",
    "GptOssEagle3DraftModel",
    "Gemma4Eagle3DraftModel",
)
VLLM_ARCHITECTURES = ("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
SGLANG_ARCHITECTURE = "LlamaForCausalLMEagle3"

# Only modelopt's exporter writes these into eagle_config; the other use_* keys there were copied by others.
_MODELOPT_KEYS = ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers")


def draft_family(fields: JsonFields, names: Collection[str]) -> tuple[DraftFamily, str]:
    """The family, and the mark in the file that says so.

    All but ``SpecForge`` and ``unknown`` rest on a mark that no other writer makes. SpecForge's layout (``midlayer.``
    with both d2t and t2d) is also written by hand, so it decides nothing by itself.

    Args:
        fields: config.json.
        names: of the tensors, as stored; empty when they are not known.
    """
    architecture = fields.architecture
    if "speculators_model_type" in fields.values or architecture in SPECULATORS_ARCHITECTURES:
        return "speculators", f"architectures = {architecture}, or a speculators_model_type"
    if architecture in NEMO_ARCHITECTURES:
        return "NeMo", f"architectures = {architecture}"
    if architecture in VLLM_ARCHITECTURES:
        return "vLLM", f"architectures = {architecture}"
    if "_torchspec_version" in fields.values:
        return "TorchSpec", "the key _torchspec_version"
    eagle = fields.object("eagle_config")
    marks = [key for key in _MODELOPT_KEYS if eagle is not None and key in eagle.values]
    if marks:
        return "modelopt", f"the key eagle_config.{marks[0]}"
    if architecture == "LlamaForCausalLM":
        return "official", f"architectures = {architecture}"
    plain = {name.removeprefix("model.") for name in names}
    is_midlayer = any(name.startswith("midlayer.") for name in plain)
    if architecture == SGLANG_ARCHITECTURE and is_midlayer and {"d2t", "t2d"} <= plain:
        return "SpecForge", "midlayer. with d2t and t2d; others write this layout too"
    return "unknown", "no writer's mark; names and keys are enough to read it"

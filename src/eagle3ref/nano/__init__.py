"""The embedded pair: a trained Kimi-K2.5-shaped nano target, two EAGLE-3 drafts for it, and held-out prompts."""

from __future__ import annotations

from pathlib import Path

_DATA = Path(__file__).parent / "data"


def target_path() -> Path:
    """Folder of the nano target: Moonshot's layout, routed experts packed INT4."""
    return _DATA / "target"


def draft_path() -> Path:
    """Folder of the Llama-style (GQA) draft, architecture ``LlamaForCausalLMEagle3``."""
    return _DATA / "draft"


def mla_draft_path() -> Path:
    """Folder of the MLA draft, architecture ``Eagle3DeepseekV2ForCausalLM``."""
    return _DATA / "draft_mla"


def prompts_path() -> Path:
    """JSONL of prompts (token ids) from modules that no training step saw."""
    return _DATA / "prompts.jsonl"

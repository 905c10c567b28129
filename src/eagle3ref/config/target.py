"""What config.json says of a target."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.config.layers import MLAConfig, MoEConfig

KIMI_MODEL_TYPES = ("kimi_k25", "kimi_k2")


@dataclass(frozen=True)
class TargetConfig:
    """What every target has, whatever its architecture.

    Args:
        name: folder name or hub name, for people.
        path: the checkpoint folder, or "" for a model that was handed over in memory.
        model_type: ``model_type`` of config.json.
        num_layers: decoder layers; capture points run from 0 (embedding output) to this.
        config_sha256: of the config.json text; "" without a file.
        architecture: ``architectures[0]``, which engines choose defaults by; "" when it is not known.
    """

    name: str
    path: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    config_sha256: str = ""
    architecture: str = ""

    @classmethod
    def from_folder(cls, folder: str | Path) -> TargetConfig:
        """Read ``config.json`` (the ``text_config`` of a multimodal one) and the end tokens.

        Raises:
            Eagle3RefError: no readable config.json, or a key is missing.
        """
        path = Path(folder)
        outer = JsonFields.read(path / "config.json")
        fields = outer.object("text_config") or outer
        return cls(
            name=path.resolve().name,
            path=str(path.absolute()),  # a trace remembers it, and may be read from elsewhere
            model_type=outer.text("model_type"),
            num_layers=fields.size("num_hidden_layers"),
            hidden_size=fields.size("hidden_size"),
            vocab_size=fields.size("vocab_size"),
            max_position_embeddings=fields.size("max_position_embeddings", 2**31 - 1),
            eos_token_ids=_eos_token_ids(path, fields),
            config_sha256=hashlib.sha256((path / "config.json").read_bytes()).hexdigest(),
            architecture=outer.architecture,
        )


def _eos_token_ids(folder: Path, fields: JsonFields) -> tuple[int, ...]:
    """The end tokens of generation_config.json and of config.json: Kimi chat turns end with one that only one names."""
    generation = folder / "generation_config.json"
    extra = JsonFields.read(generation).integers("eos_token_id") if generation.exists() else None
    return tuple(sorted({*(fields.integers("eos_token_id") or ()), *(extra or ())}))


@dataclass(frozen=True)
class KimiK25Config:
    """The text model of Kimi-K2.5 (and K2, K2-Thinking, K2.6: read everything from the file, hard-code nothing)."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_dense_layers: int
    rms_norm_eps: float
    attention: MLAConfig
    moe: MoEConfig

    @classmethod
    def from_folder(cls, folder: str | Path) -> KimiK25Config:
        """Read ``config.json``: its ``text_config`` for K2.5, the top level for K2."""
        outer = JsonFields.read(Path(folder) / "config.json")
        fields = outer.object("text_config") or outer
        plain = {"hidden_act": "silu", "attention_bias": False, "moe_layer_freq": 1}
        fields.require(plain, "as in every Kimi-K2 model", "Load this model through transformers instead.")
        return cls(
            num_layers=fields.size("num_hidden_layers"),
            hidden_size=fields.size("hidden_size"),
            vocab_size=fields.size("vocab_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_dense_layers=fields.size("first_k_dense_replace", lowest=0),
            rms_norm_eps=fields.number("rms_norm_eps"),
            attention=MLAConfig.from_json(fields),
            moe=MoEConfig.from_json(fields),
        )

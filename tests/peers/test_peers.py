"""The peers themselves, in an environment of their own (``make test-peers``): frozen numbers, and exports they read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
import variants
from safetensors.torch import load_file
from torch import Tensor

import eagle3ref as e3
from eagle3ref.draft import export_draft

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")]

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "peers"
TOLERANCE = 2e-6  # of the largest number: another CPU adds in another order


def run_peer(script: str, output: Path, *arguments: Path) -> dict[str, Tensor]:
    """What a script of this folder saves when the peer's interpreter runs it."""
    command = [os.environ["EAGLE3REF_TEST_PEERS"], HERE / script, output, *arguments]
    # Compiling the peer's layers would take minutes and change nothing.
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return load_file(output)


@pytest.mark.parametrize(
    ("script", "golden"),
    [
        ("speculators_logits.py", "speculators_0_9_0.safetensors"),
        ("deepseek_attention.py", "deepseek_attention.safetensors"),
    ],
)
def test_frozen_numbers_are_the_peers(script, golden, tmp_path):
    """Bug: golden numbers that were edited, or that another version of the peer made."""
    found, frozen = run_peer(script, tmp_path / "out.safetensors"), load_file(GOLDEN / golden)
    assert found.keys() == frozen.keys()
    errors = {name: float((found[name] - value).abs().max() / value.abs().max()) for name, value in frozen.items()}
    assert max(errors.values()) < TOLERANCE, errors


def test_speculators_reads_what_was_exported(tmp_path):
    """Bug: an export that speculators cannot load, loads with a tensor missing (NaN), or runs as another network."""
    for name in variants.VARIANTS:
        points = (2, 4, 6)[: variants.num_aux_states(variants.config(name))]
        draft = e3.load_draft(variants.write(name, tmp_path / "original" / name), capture_points=points)
        export_draft(draft, tmp_path / "exported" / name, format="speculators")
    found = run_peer("speculators_logits.py", tmp_path / "out.safetensors", tmp_path / "exported")
    frozen = load_file(GOLDEN / "speculators_0_9_0.safetensors")
    assert [name for name in frozen if not torch.equal(found[name], frozen[name])] == []

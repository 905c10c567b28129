"""Which residual streams a draft folder asks for: two numberings, two places, an override."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from eagle3ref.draft import DraftWarning, Eagle3Draft, load_draft
from eagle3ref.errors import Eagle3RefError


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory) -> Path:
    return tiny.target_folder(tmp_path_factory.mktemp("target"))


def load(folder: Path, *, target: Path | None = None, points=None, **keys) -> Eagle3Draft:
    """Load a draft with other config keys; ... removes one."""
    return load_draft(tiny.draft_folder(folder, **keys), target=target, capture_points=points)


def ids(*values: int) -> dict:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(values)}}


FLAT = "eagle_aux_hidden_state_layer_ids"
RESOLVED = {
    "outputs": (ids(1, 2, 3), None, (2, 3, 4), "starts with 1: outputs"),
    "inputs": (ids(2, 3, 4), None, (2, 3, 4), "starts with 2: inputs"),
    "none": ({"eagle_config": ...}, None, (2, 3, 4), "the default for 7 layers"),
    "flat": ({"eagle_config": ..., FLAT: [1, 3, 5]}, None, (2, 4, 6), f"{FLAT} = [1, 3, 5]"),
    "both": ({**ids(2, 4, 6), FLAT: [2, 4, 6]}, None, (2, 4, 6), f"eagle_config.{FLAT}"),
    "both engines": ({**ids(0, 3, 5), FLAT: [1, 4, 6]}, None, (1, 4, 6), "(one less in eagle_config) = [1, 4, 6]"),
    "override": (ids(3, 4, 5), (0, 5, 7), (0, 5, 7), "given by the caller"),
}


@pytest.mark.parametrize("case", RESOLVED)
def test_capture_points_are_resolved(case, target_folder, tmp_path):
    """Bug: [1, 29, 57] and [2, 30, 58] read as different streams, an override ignored, the default of another depth."""
    keys, points, expected, how = RESOLVED[case]
    with pytest.warns(DraftWarning, match="embedding differs"):
        draft = load(tmp_path, target=target_folder, points=points, **keys)
    assert draft.capture_points == expected
    assert how in draft.origins["capture points"]


UNRESOLVED = {
    "another first id": (ids(3, 4, 5), None, r"\[3, 4, 5\]; expected a list that starts with 1"),
    "empty list": (ids(), None, r"found eagle_config\.\w+ = \[\]"),
    "contradiction": ({**ids(2, 3, 4), FLAT: [1, 2, 3]}, None, r"\[2, 3, 4\] in eagle_config and \[1, 2, 3\] at top"),
    "not one less throughout": ({**ids(1, 2, 4), FLAT: [2, 3, 4]}, None, r"\[1, 2, 4\] in eagle_config"),
    "past the last layer": (ids(2, 3, 8), None, r"capture points \(2, 3, 8\); .* from 0 to 7"),
    "not ascending": (ids(2, 4, 3), None, r"capture points \(2, 4, 3\)"),
    "two of three": ({}, (2, 3), "expected 3 ascending points"),
    "negative": ({}, (-1, 2, 3), r"capture points \(-1, 2, 3\)"),
}


@pytest.mark.parametrize("case", UNRESOLVED)
def test_capture_points_that_cannot_be_resolved_are_refused(case, target_folder, tmp_path):
    """Bug: a guess, as engines make it: the acceptance falls and nobody is told."""
    keys, points, found = UNRESOLVED[case]
    with pytest.raises(Eagle3RefError, match=found):
        load(tmp_path, target=target_folder, points=points, **keys)


def test_no_ids_and_no_target_is_refused(tmp_path):
    """Bug: some default depth."""
    with pytest.raises(Eagle3RefError, match="no layer ids in config.json, and no target"):
        load(tmp_path, eagle_config=...)


NUMBERED = {
    "speculators": ([1, 3, 5], {"architectures": ["Eagle3DraftModel"]}, (1, 3, 5)),
    "speculators, last stream": ([0, 3, 7], {"architectures": ["Eagle3DraftModel"]}, (0, 3, 7)),
    "vLLM": ([0, 3, 5], {"architectures": ["Eagle3LlamaForCausalLM"]}, (0, 3, 5)),
    "modelopt": ([0, 3, 6], {"eagle_config": {"next_layer_regular": True}}, (1, 4, 7)),
    "modelopt, renumbered": ([2, 3, 4], {"eagle_config": {"next_layer_regular": True}}, (2, 3, 4)),
    "NeMo": ([3, 4, 5], {"architectures": ["LlamaEagle3DraftModel"]}, (4, 5, 6)),
    "TorchSpec": ([3, 4, 5], {"_torchspec_version": "0.1"}, (4, 5, 6)),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_a_sure_family_says_how_ids_are_numbered(case, target_folder, tmp_path):
    """Bug: ids of a writer whose numbering is known refused, or shifted by the rule of another."""
    ids, keys, expected = NUMBERED[case]
    with pytest.warns(DraftWarning, match="embedding differs"):
        draft = load(tmp_path, target=target_folder, **{"eagle_config": ..., FLAT: ids, **keys})
    assert draft.capture_points == expected


AMBIGUOUS = {
    "SpecForge's layout is written by others too": (FLAT, [3, 4, 5], {}),
    "TorchSpec shifts MLA for vLLM": (FLAT, [3, 4, 5], {"kind": "mla", "_torchspec_version": "0.1"}),
    "TensorRT-LLM's final state": ("TensorRT-LLM's -1", [-1, 2, 4], {"eagle_config": {"next_layer_regular": True}}),
    "nothing known": (FLAT, [0, 3, 5], {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kind": "mla"}),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_ids_of_an_unsure_family_are_refused(case, target_folder, tmp_path):
    """Bug: a guess from a layout that several writers with different numberings use."""
    found, ids, keys = AMBIGUOUS[case]
    with pytest.raises(Eagle3RefError, match=found):
        load(tmp_path, target=target_folder, **{"eagle_config": ..., FLAT: ids, **keys})

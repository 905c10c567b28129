"""What an engine says to each setting, by the same traps that ``explain`` finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_explain_traps import CHAIN, MLA, SGLANG, SGLANG_FLAGS, TREE, VLLM, Pair

from eagle3ref.config import TreeConfig
from eagle3ref.tune import EngineLimits

CHAINS, SMALL_TREE = TreeConfig(3, 1, 4), TreeConfig(3, 4, 8)


def limits(folder: Path, *flags: str, engine: str = SGLANG, **pair: object) -> EngineLimits:
    asked = {} if engine == VLLM else {"flags": [*SGLANG_FLAGS, *flags]}
    return EngineLimits(Pair(engine=engine, **asked, **pair).explain(folder))


@pytest.mark.parametrize("counts", [CHAIN, TREE, []], ids=["chain", "tree", "default"])
@pytest.mark.parametrize("backend", ["trtllm_mha", "flashmla", "trtllm_mla", "aiter"])
def test_backends_for_chains_refuse_trees_whatever_tree_the_flags_ask_for(
    tmp_path: Path, backend: str, counts: list[str]
) -> None:
    """Would catch a tree that is recommended for a server which refuses it, because its own flags are refused too."""
    found = limits(tmp_path, *counts, "--attention-backend", backend, **MLA)
    assert found.refusal(CHAINS) is None
    assert backend in str(found.refusal(SMALL_TREE))
    trap = found.trap(SMALL_TREE)
    assert trap is not None
    assert trap.source.is_established


def test_pages_and_rules_refuse_trees(tmp_path: Path) -> None:
    """Would catch limits that look at the backend alone."""
    paged = limits(tmp_path / "a", *CHAIN, "--attention-backend", "torch_native", "--page-size", "16")
    assert "page size 16" in str(paged.refusal(SMALL_TREE))
    assert paged.refusal(CHAINS) is None
    fine = limits(tmp_path / "b", *CHAIN, "--attention-backend", "triton", "--page-size", "16")
    assert fine.refusal(SMALL_TREE) is None


def test_engines_without_trees_and_the_widest_tree(tmp_path: Path) -> None:
    """Would catch a tree for vLLM, or more nodes than SGLang's kernel has threads."""
    assert "no trees" in str(limits(tmp_path / "a", engine=VLLM).refusal(SMALL_TREE))
    sglang = limits(tmp_path / "b", *CHAIN)
    assert sglang.refusal(TreeConfig(20, 8, 1024)) is None
    assert "1024" in str(sglang.refusal(TreeConfig(20, 8, 1025)))

"""Rules and coins against numbers of the real SGLang 0.5.23 and vLLM 0.32.0, bit for bit where they are defined."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import exact
import numpy as np
import oracles
import pytest
import torch

from eagle3ref.config import AcceptanceRule
from eagle3ref.sampling import target_probs
from eagle3ref.tree import DraftTree
from eagle3ref.verify import (
    Verification,
    verify_block,
    verify_multi_round,
    verify_rejection,
    verify_target_only,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_rules.json").read_text())
CHAINS = GOLDEN["chains"]


def chain_of(tokens: list[list[int]]) -> DraftTree:
    parents = torch.arange(-1, len(tokens[0]) - 1).repeat(len(tokens), 1)
    return DraftTree.from_parents(torch.tensor(tokens), parents, torch.zeros(len(tokens), dtype=torch.int64))


def chain_inputs(case: dict[str, Any]) -> tuple[tuple[Any, ...], torch.Tensor]:
    parts = (torch.tensor(case[key]) for key in ("target_probs", "uniforms", "final_uniforms"))
    return (chain_of(case["tokens"]), *parts), torch.tensor(case["draft_probs"])


def emitted(result: Verification) -> list[list[int]]:
    """Accepted tokens and the bonus, row by row."""
    rows = zip(result.accepted_tokens.tolist(), result.bonus_token.tolist(), strict=True)
    return [[*(token for token in accepted if token >= 0), bonus] for accepted, bonus in rows]


@pytest.mark.parametrize("case", CHAINS, ids=lambda case: f"{len(case['tokens'])}x{len(case['tokens'][0]) - 1}")
def test_chains_come_out_as_from_sglangs_kernel(case):
    """Bug: any slip against the real kernel: order of coins, guard of draft probabilities, block bound, remainder."""
    inputs, draft_probs = chain_inputs(case)
    assert emitted(verify_rejection(*inputs, draft_probs=draft_probs)) == case["rejection"]
    assert emitted(verify_block(*inputs, draft_probs=draft_probs)) == case["block"]


@pytest.mark.parametrize("case", CHAINS, ids=lambda case: f"{len(case['tokens'])}x{len(case['tokens'][0]) - 1}")
def test_vllm_accepts_the_same_drafts(case):
    """Bug: a one-hot draft divided by its real probability; vLLM's default drafts are its first choices."""
    inputs, draft_probs = chain_inputs(case)
    assert verify_rejection(*inputs, draft_probs=draft_probs).num_accepted.tolist() == case["vllm_num_accepted"]
    assert verify_rejection(*inputs).num_accepted.tolist() == case["vllm_num_accepted_one_hot"]


@pytest.mark.parametrize("verify", [verify_rejection, verify_block])
@pytest.mark.parametrize("value", GOLDEN["non_probability_q"])
def test_a_draft_probability_that_is_none_rejects(verify, value):
    """Bug: NaN, infinity, 0 or 2 as a draft probability accepts, or empties the remainder."""
    target, draft = torch.zeros(1, 4, 64), torch.zeros(1, 3, 64)
    target[..., 7], draft[..., 7] = 1, float(value)
    uniforms = torch.full((1, 4), 0.5)
    result = verify(chain_of([[0, 7, 7, 7]]), target, uniforms, uniforms[:, 0], draft_probs=draft)
    assert emitted(result) == [[7]]


@pytest.mark.parametrize("case", GOLDEN["zero_coin"], ids=str)
def test_a_coin_of_zero_accepts_no_zero_mass(case):
    """Bug: `<=` in place of `<`."""
    target = torch.tensor([[0.5, 0.5, 0.0]] * 3)[None]
    draft, coins = torch.tensor([[0.6, 0.3, 0.1]] * 2)[None], torch.zeros(1, 3)
    inputs = (chain_of([[0, *case["tokens"]]]), target, coins)
    final = torch.tensor([0.5])
    assert emitted(verify_rejection(*inputs, final, draft_probs=draft)) == [case["rejection"]]
    assert emitted(verify_block(*inputs, final, draft_probs=draft)) == [case["block"]]


def test_toy_model_of_sglangs_own_test():
    """Bug: a block verification that agrees with its paper and not with SGLang: 10/9 and 11/9 accepted drafts."""
    toy = GOLDEN["toy"]
    texts = [text for length in range(3) for text in itertools.product(range(3), repeat=length)]
    target, draft = ({text: [Fraction(p) for p in toy[side]] for text in texts} for side in ("target", "draft"))
    for name in ("rejection", "block"):
        rule = AcceptanceRule(name, "sampled")
        assert exact.mean_accepted(exact.over_drafts(rule, target, draft, 2)) == Fraction(toy[f"mean_accepted_{name}"])


def in_sibling_order(case: dict[str, Any], row: int) -> tuple[list[int], list[int]]:
    """(nodes in the order of SGLang's links, their parents in the new numbers): its test's siblings run backwards."""
    next_token, next_sibling = case["retrieve_next_token"][row], case["retrieve_next_sibling"][row]
    order, parents = [0], [-1]
    for place, node in enumerate(order):
        child = next_token[node]
        while child >= 0:
            order.append(child)
            parents.append(place)
            child = next_sibling[child]
    return order, parents


@pytest.mark.parametrize("expected", GOLDEN["target_only"]["cases"], ids=lambda c: f"{c['rule']}-{c['threshold_acc']}")
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("coin", [1e-6, 0.5, 1 - 2**-24])
def test_sglangs_target_only_test_comes_out(expected, row, coin):
    """Bug: thresholds of 0 accept a zero mass by the present rule, or do not by the older one."""
    case = GOLDEN["target_only"]
    order, parents = in_sibling_order(case, row)
    logits = torch.nn.functional.one_hot(torch.tensor(case["peak"][row]), 20) * 9.0 + 1
    tokens = torch.tensor(case["candidates"][row])[order]
    rule = AcceptanceRule(
        "target_only", "top", expected["threshold_single"], expected["threshold_acc"], expected["rule"] == "legacy"
    )
    result = verify_target_only(
        DraftTree.from_parents(tokens[None], torch.tensor([parents]), torch.zeros(1, dtype=torch.int64)),
        target_probs(logits, temperature=0.01)[order][None],
        torch.full((1, len(order)), coin),
        torch.tensor([coin]),
        rule=rule,
    )
    path = [0, *(order[node] for node in result.accepted_nodes[0].tolist() if node >= 0)]
    index = case["retrieve_index"][row]
    wanted = expected["accept_index"][row]
    assert [index[node] for node in path] == [node for node in wanted if node >= 0]
    assert result.num_accepted.tolist() == [expected["accept_token_num"][row]]
    tokens_out = [expected["predicts"][index[node]] for node in path]
    assert emitted(result) == [tokens_out]


def kernel_walk(parents, tokens, probs, coins, single, acc, inclusive) -> list[int]:
    """sampling.cuh's walk in fp32 scalars, child after child."""
    single, acc = np.float32(single), max(np.float32(acc), np.float32(1e-9))
    path, node, coin = [], 0, coins[0]
    while True:
        total = np.float32(0)
        for child in [child for child, parent in enumerate(parents) if parent == node]:
            mass = probs[node][tokens[child]]
            total = np.float32(total + mass)
            reached = np.float32(total / acc)
            hit = (coin <= reached or mass >= single) if inclusive else mass > 0 and (coin < reached or mass >= single)
            if hit:
                path, node, coin = [*path, child], child, coins[child]
                break
        else:
            return path


@pytest.mark.parametrize("inclusive", [False, True])
def test_target_only_decides_in_fp32_as_the_kernel_does(inclusive):
    """Bug: another order of additions, a product for the quotient, or fp64; it shows where a coin is the border."""
    rng, seen = random.Random(4), set()
    topologies = list(oracles.all_topologies(5))
    for _ in range(400):
        parents = rng.choice(topologies)
        single, acc = rng.choice([(1, 1), (1, 0.7), (0.4, 0.9), (0.3, 1)])
        probs = torch.rand(5, 6).pow(2).softmax(-1) if rng.random() < 0.5 else torch.randint(0, 3, (5, 6)) / 7
        values, tokens = probs.numpy(), exact.distinct_siblings(rng, parents, 6)
        coins = []
        for node in range(5):  # on the border of one of its children, or one step beside
            border = np.float32(0)
            for child in [child for child in range(5) if parents[child] == node][: rng.randrange(1, 4)]:
                border = np.float32(border + values[node][tokens[child]])
            border = np.float32(border / np.float32(acc))
            coins.append(float(np.clip(np.nextafter(border, np.float32(rng.choice([border, 0, 2]))), 0, 1)))
        wanted = kernel_walk(parents, tokens, values, np.array(coins, np.float32), single, acc, inclusive)
        tree = DraftTree.from_parents(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([0]))
        rule = AcceptanceRule("target_only", "top", single, acc, inclusive)
        filled = torch.cat([probs, 1e-3 * torch.ones(5, 1)], 1)[None]  # a token nobody drafts: some mass is left
        result = verify_target_only(tree, filled, torch.tensor([coins]), torch.tensor([0.5]), rule=rule)
        assert result.accepted_nodes[0].tolist() == wanted + [-1] * (4 - len(wanted))
        seen.add(len(wanted))
    assert seen >= {0, 1, 2}


def test_rejection_multiplies_in_fp32_as_the_kernel_does():
    """Bug: target / draft, which rounds to another side of the coin now and then."""
    target, draft = torch.rand(20000), torch.rand(20000)
    coin = (target / draft).clamp(max=1)
    wanted = [np.float32(c * q) < p for c, q, p in zip(coin.numpy(), draft.numpy(), target.numpy(), strict=True)]
    assert wanted != (coin < target / draft).tolist()
    rows = torch.stack([target, 2 - target], 1)[:, None].expand(-1, 2, -1)
    result = verify_rejection(
        chain_of([[0, 0]] * 20000),
        rows,
        coin[:, None].expand(-1, 2),
        coin,
        draft_probs=torch.stack([draft, torch.zeros_like(draft)], 1)[:, None],
    )
    assert result.num_accepted.tolist() == wanted


def test_block_never_passes_a_coin_that_its_ratio_refuses():
    """Bug: the bound alone, which rounding can lift over the ratio; SGLang asks the ratio first."""
    ratio, zero = torch.rand(20000), torch.zeros(20000)
    bound = ratio / (ratio + 1 - ratio)
    assert (bound > ratio).any()  # target and draft of the second row share no token: the rest is the ratio
    target = torch.stack([torch.stack([ratio, 1 - ratio], 1), torch.stack([zero + 1, zero], 1)], 1)[:, [0, 1, 1]]
    draft = torch.stack([torch.stack([zero + 1, zero], 1), torch.stack([zero, zero + 1], 1)], 1)
    tree, coins = chain_of([[0, 0, 1]] * 20000), ratio[:, None].expand(-1, 3)
    assert not verify_block(tree, target, coins, zero + 0.5, draft_probs=draft).num_accepted.any()


def test_multi_round_is_eagles_loop():
    """Bug: one coin for all siblings, or a share that forgets what was rejected before it (evaluate_posterior)."""
    rng = random.Random(6)
    for _ in range(300):
        parents = rng.choice(list(oracles.all_topologies(5)))
        tokens = exact.distinct_siblings(rng, parents, 6)
        probs, coins = torch.rand(5, 6, dtype=torch.float64).pow(3), torch.rand(1, 5, dtype=torch.float64)
        probs = probs / probs.sum(-1, keepdim=True)
        node, path, going = 0, [], True
        while going:
            row, going = probs[node].clone(), False
            for child in [child for child in range(5) if parents[child] == node]:
                if coins[0, child] <= row[tokens[child]]:
                    node, path, going = child, [*path, child], True
                    break
                row[tokens[child]] = 0
                row = row / row.sum()
        tree = DraftTree.from_parents(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([0]))
        result = verify_multi_round(tree, probs[None], coins, torch.tensor([0.3]))
        assert result.accepted_nodes[0].tolist() == path + [-1] * (4 - len(path))
        assert result.bonus_token.item() == oracles.inverse_cdf(row.tolist(), float(torch.tensor(0.3)))

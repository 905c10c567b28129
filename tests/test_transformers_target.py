"""TransformersTarget against the model's own plain forward, and against KimiK25Target on the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import CONFIGS, KIMI, LAYERS, SIZES, VOCAB, WIDTH, random_model
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import eagle3ref as e3
from eagle3ref.config import GQAConfig, RopeConfig
from eagle3ref.target.generate import generate
from eagle3ref.target.kimi_k25 import KimiK25Target
from eagle3ref.target.transformers import TransformersTarget

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-6}  # some layers compute in fp32 whatever the dtype


@pytest.fixture(params=[*((name, torch.float32) for name in CONFIGS), ("llama", torch.float64)], ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    name, dtype = request.param
    return random_model(*CONFIGS[name], dtype)


def tokens_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB - 1, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, wanted: Tensor) -> None:
    scale = float(wanted.abs().max())
    assert float((found - wanted).abs().max()) <= TOLERANCE[wanted.dtype] * max(1.0, scale)


def plain_state(model: Any, tokens: Tensor) -> Tensor:
    """The oracle: the state after the last of ``tokens`` [T], by the model alone, without cache or mask."""
    with torch.no_grad():
        return model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0, -1]


def prefilled(target: TransformersTarget, prompts: list[Tensor]) -> Any:
    """A cache that holds prompts of different lengths."""
    padded = pad_sequence(prompts, batch_first=True, padding_value=1)
    cache = target.new_cache(len(prompts))
    target.forward(padded, cache=cache)
    cache.keep(torch.arange(padded.shape[1]).expand(padded.shape), torch.tensor([len(p) for p in prompts]))
    return cache


@torch.no_grad()
def test_states_and_logits_are_the_models_own(model: Any) -> None:
    """Would catch a capture point off by one, the normed state at the last point, and logits without scale or cap."""
    tokens = tokens_of(2, 11)
    norm = {"gpt2": "ln_f", "falcon": "ln_f"}.get(model.config.model_type, "norm")
    entering: list[Tensor] = []
    hook = getattr(model.base_model, norm).register_forward_pre_hook(lambda _, args: entering.append(args[0]))
    wanted = model(input_ids=tokens, output_hidden_states=True, use_cache=False)
    hook.remove()
    target = TransformersTarget(model)
    output = target.forward(tokens, capture_points=range(LAYERS + 1))
    for point in range(LAYERS):
        assert_close(output.aux_hidden_states[point], wanted.hidden_states[point])
    assert_close(output.aux_hidden_states[LAYERS], entering[0])
    assert_close(output.final_hidden_state, wanted.hidden_states[LAYERS])
    assert_close(target.logits(output.final_hidden_state), wanted.logits)
    assert target.forward(tokens, capture_points=(2, 5)).aux_hidden_states.keys() == {2, 5}


def test_batched_steps_equal_each_sequence_alone(model: Any) -> None:
    """Would catch padding that is attended to, rope positions counted from the padded end, and rows in a wrong slot."""
    target = TransformersTarget(model)
    sequences = [tokens_of(length + 6, seed=length) for length in (3, 9, 1)]
    cache = prefilled(target, [sequence[:-6] for sequence in sequences])
    for taken in ((0, 1), (1, 4), (4, 6)):  # one, three and two new tokens
        new = torch.stack([sequence[len(sequence) - 6 :][slice(*taken)] for sequence in sequences])
        states = target.forward(new, cache=cache).final_hidden_state
        for i, sequence in enumerate(sequences):
            assert_close(states[i, -1], plain_state(model, sequence[: len(sequence) - 6 + taken[1]]))
        cache.keep(torch.arange(new.shape[1]).expand(new.shape), torch.full((3,), new.shape[1]))
    assert cache.lengths.tolist() == [9, 15, 7]


def path_to(node: int, parents: list[int]) -> list[int]:
    return [] if node < 0 else [*path_to(parents[node], parents), node]


def test_tree_equals_its_paths_and_rejected_rows_vanish(model: Any) -> None:
    """Would catch siblings that see each other, positions by row instead of depth, and rejected rows in the cache."""
    target = TransformersTarget(model)
    prompts = [tokens_of(7, seed=1), tokens_of(2, seed=2)]
    cache = prefilled(target, prompts)
    parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 4], [-1, 0, 1, 2, 0, 4, 4]])
    tree = e3.DraftTree.from_parents(tokens_of(2, 7, seed=3), parents, cache.lengths)
    states = target.forward(tree.tokens, cache=cache, positions=tree.positions, mask=tree.tree_mask).final_hidden_state
    for i, prompt in enumerate(prompts):
        for node in range(7):
            path = path_to(node, parents[i].tolist())
            assert_close(states[i, node], plain_state(model, torch.cat((prompt, tree.tokens[i, path]))))

    accepted = torch.tensor([[0, 1, 4, 6], [0, 4, 0, 0]])  # the second sequence keeps two rows
    cache.keep(accepted, torch.tensor([4, 2]))
    following = tokens_of(2, 2, seed=4)
    states = target.forward(following, cache=cache).final_hidden_state
    for i, count in enumerate((4, 2)):
        committed = torch.cat((prompts[i], tree.tokens[i, accepted[i, :count]], following[i]))
        assert_close(states[i, -1], plain_state(model, committed))


def test_hooks_are_gone_after_a_failed_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch hooks that stay on the user's model and keep states alive."""
    model = random_model(*CONFIGS["llama"])
    target = TransformersTarget(model)

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.model.layers[4], "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        target.forward(tokens_of(1, 3), capture_points=(1, 3, LAYERS))
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in model.model.layers)


@pytest.mark.parametrize(("key", "value"), [("logit_scale", 0.3), ("logits_scaling", 4.0)])
@torch.no_grad()
def test_logits_are_scaled_as_the_architecture_does(key: str, value: float) -> None:
    """Would catch Cohere's or Granite's probabilities at a wrong temperature: the argmax would still be right."""
    model = random_model({"logit_scale": "cohere", "logits_scaling": "granite"}[key], {**SIZES, key: value})
    target, tokens = TransformersTarget(model), tokens_of(1, 5)
    assert_close(target.logits(target.forward(tokens).final_hidden_state), model(input_ids=tokens).logits)


@pytest.fixture(scope="module")
def kimi_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepseek")
    random_model("deepseek_v3", KIMI).save_pretrained(folder)
    return folder


def test_kimi_and_transformers_agree(kimi_folder: Path) -> None:
    """Would catch a wrong rope pairing, YaRN, routing, shared expert or norm: each side is the other's oracle."""
    kimi = KimiK25Target.from_folder(kimi_folder, dtype=torch.float32, latent_norm_eps=1e-6)
    other = e3.load_target(kimi_folder, dtype=torch.float32)
    assert isinstance(other, TransformersTarget)
    assert other.config == kimi.config
    tokens, points = tokens_of(2, 40), range(LAYERS + 1)
    ours, theirs = (target.forward(tokens, capture_points=points) for target in (kimi, other))
    for point in points:
        assert float((ours.aux_hidden_states[point] - theirs.aux_hidden_states[point]).abs().max()) < 5e-5
    assert float((ours.final_hidden_state - theirs.final_hidden_state).abs().max()) < 5e-5
    prompts = [tokens_of(length, seed=length) for length in (3, 12, 7)]
    answers = [generate(target, prompts, max_new_tokens=16) for target in (kimi, other)]
    assert all(torch.equal(first, second) for first, second in zip(*answers, strict=True))


def small_draft(target: TransformersTarget) -> e3.Eagle3Draft:
    """A random draft with the whole vocabulary."""
    config = e3.DraftConfig(
        "LlamaForCausalLMEagle3",
        hidden_size=WIDTH,
        target_hidden_size=WIDTH,
        intermediate_size=48,
        vocab_size=target.config.vocab_size,
        draft_vocab_size=target.config.vocab_size,
        shares_target_lm_head=False,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        attention=GQAConfig(4, 2, 8, RopeConfig(8, 1e4)),
    )
    draft = e3.Eagle3Draft(config, 1, (2, 3, 4), torch.arange(config.vocab_size)).to(target.embedding().dtype)
    return draft.requires_grad_(False).eval()


@pytest.mark.parametrize("tree", [e3.TreeConfig(3, 1, 4), e3.TreeConfig(4, 3, 12)], ids=["chain", "tree"])
def test_capture_replay_and_live_decoding_agree(tmp_path: Path, tree: e3.TreeConfig) -> None:
    """Would catch a target whose tree rows, kept rows or recorded states differ from its plain run."""
    # A small vocabulary, so that even a random draft is right now and then.
    model = random_model("llama", {**SIZES, "vocab_size": 12, "eos_token_id": 11}, torch.float64)
    target = TransformersTarget(model)
    draft = small_draft(target)
    prompts = [tokens_of(length, seed=length) % 11 for length in (4, 9, 6)]
    trace = e3.capture(target, prompts, tmp_path / "trace", capture_points=(2, 3, 4), max_new_tokens=24)
    replayed = {rounds.id: rounds for rounds in e3.replay_rounds(trace, draft, tree)}
    accepted = 0
    for i, (prompt, answer) in enumerate(zip(prompts, generate(target, prompts, max_new_tokens=24), strict=True)):
        decoded = e3.decode(target, draft, prompt, tree, max_new_tokens=24)
        rounds = replayed[f"prompt-{i}"]
        assert torch.equal(decoded.tokens, answer)
        count = int(rounds.complete.sum())
        assert decoded.roots[:count] == rounds.roots[:count].tolist()
        assert decoded.num_accepted[:count] == rounds.num_accepted[:count].tolist()
        accepted += sum(decoded.num_accepted)
    assert accepted > 0

"""Streamed weights give the bits of resident ones, whatever is read when, and the vectors of transformers."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from test_target_checkpoint_decode import as_bf16, as_fp8, rewritten

from eagle3ref.draft import load_draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import LayerMajorTarget, StreamedTarget, kimi_head, load_target
from eagle3ref.target.checkpoint import reads_all_experts
from eagle3ref.target.int4 import dequantize_int4
from eagle3ref.target.kimi_k25 import KimiK25Target
from eagle3ref.target.streaming.budget import Budget, Buffers
from eagle3ref.tree import DraftTree

GOLDEN = Path(__file__).parent / "golden" / "kimi_tiny"
LENGTHS = (5, 1, 24, 7)


def texts(lengths=LENGTHS, vocab=300):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab, (length,), generator=generator) for length in lengths]


def one_pass(target, sequences, first_layer=0, streams=None, cache=None):
    """Streams entering every layer from the first on, final states, scores."""
    streams = target.embed(sequences) if streams is None else streams
    entering = [torch.cat(streams)]
    for layer in target.stream_layers(streams, first_layer=first_layer, cache=cache):
        entering.append(torch.cat(streams))
        assert layer == first_layer + len(entering) - 1
    final = torch.cat(target.finish(streams))
    return entering, final, target.score(final, torch.cat(sequences))


def assert_same(first, second):
    assert all(torch.equal(*pair) for pair in zip(first[0], second[0], strict=True))
    assert torch.equal(first[1], second[1])
    assert all(torch.equal(*pair) for pair in zip(first[2], second[2], strict=True))


def no_reader_is_left() -> bool:
    return not any(thread.name == "eagle3ref-reader" for thread in threading.enumerate())


@pytest.mark.parametrize("eps", ["engine", "transformers"])
def test_every_stream_equals_transformers(eps):
    """Bug: a layer that gets the weights of another, an epsilon that only the resident target knows."""
    name = "vectors_int4_fp32" + ("_engine_eps" if eps == "engine" else "")
    vectors = load_file(GOLDEN / f"{name}.safetensors")
    latent_norm_eps = None if eps == "engine" else 1e-6
    target = StreamedTarget.from_folder(GOLDEN / "int4", dtype=torch.float32, latent_norm_eps=latent_norm_eps)
    entering, final, scores = one_pass(target, list(vectors["input_ids"]))
    expected = [vectors[f"hidden_states/{point}"] for point in range(7)] + [vectors["last_layer_output"]]
    for state, want in zip([*entering, final], [*expected, vectors["hidden_states/7"]], strict=True):
        torch.testing.assert_close(state, want.flatten(0, 1), rtol=0, atol=5e-5)
    assert torch.equal(scores.argmax, vectors["logits"].flatten(0, 1).argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [LENGTHS, (3, 2)], ids=["all experts read", "chosen experts read"])
def test_streamed_equals_resident_bit_for_bit_with_buffers_of_any_size(dtype, lengths, monkeypatch):
    """Bug: experts summed in file order, a buffer written over while it is used, blocks that follow the memory."""
    resident = load_target(GOLDEN / "int4", dtype=dtype)
    assert reads_all_experts(resident.architecture.moe, sum(lengths)) is (lengths is LENGTHS)
    sequences = texts(lengths)
    expected = one_pass(resident, sequences)
    for number, factor in ((2, 1), (3, 2), (9, 100)):
        monkeypatch.setattr(Budget, "buffers", lambda self, _, n=number, f=factor: Buffers(n, f * self._least_size))
        assert_same(expected, one_pass(load_target(GOLDEN / "int4", dtype=dtype, weights="stream"), sequences))
    two = load_target(GOLDEN / "int4", dtype=dtype, weights="stream", device="cpu,cpu")
    assert_same(expected, one_pass(two, sequences))


@pytest.mark.parametrize("layout", [as_bf16, as_fp8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_formats_stream_as_they_load(layout, dtype, tmp_path):
    """Bug: a plain bf16 weight stays a view of the reader's buffer, which the next piece overwrites; FP8 unscaled."""
    folder = rewritten(tmp_path / "t", layout)
    targets = [load_target(folder, dtype=dtype, weights=weights) for weights in ("resident", "stream")]
    expected, streamed = (one_pass(target, texts(vocab=tiny.VOCAB)) for target in targets)
    assert_same(expected, streamed)
    assert_same(expected, one_pass(load_target(folder, dtype=dtype, packed=True), texts(vocab=tiny.VOCAB)))


def test_one_sequence_alone_is_forward_bit_for_bit():
    """Bug: the pass over many texts is another computation than the forward that drafts are verified with."""
    (text,) = texts((24,))
    for weights in ("resident", "stream"):
        target = load_target(GOLDEN / "int4", dtype=torch.float32, weights=weights)
        output = target.forward(text[None], capture_points=range(8))
        entering, final, _ = one_pass(target, [text])
        for point, state in output.aux_hidden_states.items():
            assert torch.equal(state[0], entering[point])
        assert torch.equal(output.final_hidden_state[0], final)


def test_a_pass_goes_on_where_it_stopped():
    """Bug: a resumed pass counts layers from 0, or reads the ones that are done."""
    target, sequences = load_target(GOLDEN / "int4", dtype=torch.float32, weights="stream"), texts()
    entering, final, scores = one_pass(target, sequences)
    for layer in (3, 7):
        before = target.bytes_read
        streams = list(entering[layer].clone().split(LENGTHS))
        assert_same((entering[layer:], final, scores), one_pass(target, sequences, layer, streams))
        head = target.census.lm_head.num_bytes
        assert target.bytes_read - before == head + sum(target.layer_bytes(i, 37) for i in range(layer, 7))
    with pytest.raises(ValueError, match="layer 0 to 7"):
        next(target.stream_layers(streams, first_layer=8))


@pytest.mark.parametrize("weights", ["resident", "stream"])
def test_one_pass_fills_a_cache_as_prefill_does(weights):
    """Bug: rows of a shorter sequence shifted, lengths of the padded batch, a layer's rows under another layer."""
    target, sequences = load_target(GOLDEN / "int4", dtype=torch.float64, weights=weights), texts()
    cache, expected = target.new_cache(4), target.new_cache(4)
    one_pass(target, sequences, cache=cache)
    padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    target.forward(padded, cache=expected)
    expected.keep(torch.arange(24).expand(4, 24), torch.tensor(LENGTHS))
    assert cache.lengths.tolist() == list(LENGTHS)
    for ours, theirs in zip(cache.prefixes(), expected.prefixes(), strict=True):
        for mine, other in zip(ours.rows, theirs.rows, strict=True):
            for row, length in enumerate(LENGTHS):
                torch.testing.assert_close(mine[row, :length], other[row, :length], rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="an empty cache"):
        next(target.stream_layers(target.embed(sequences), cache=cache))


def test_trees_behind_a_cache_equal_the_resident_target():
    """Bug: decoding on streamed weights loses the mask, the positions or the prefix."""
    resident, streamed = (load_target(GOLDEN / "int4", dtype=torch.float32, weights=w) for w in ("resident", "stream"))
    (text,) = texts((9,))
    tree = DraftTree.from_parents(torch.tensor([[5, 6, 7, 8]]), torch.tensor([[-1, 0, 0, 2]]), torch.tensor([9]))
    outputs = []
    for target in (resident, streamed):
        cache = target.new_cache(1)
        target.forward(text[None], cache=cache)
        cache.keep(torch.arange(9)[None], torch.tensor([9]))
        output = target.forward(
            tree.tokens, cache=cache, positions=tree.positions, mask=tree.tree_mask, capture_points=(2, 3, 4)
        )
        outputs.append([*output.aux_hidden_states.values(), target.logits(output.final_hidden_state)])
    assert all(torch.equal(*pair) for pair in zip(*outputs, strict=True))


def test_only_the_experts_that_tokens_chose_are_read():
    """Bug: one token costs the whole checkpoint, or an expert too few is read and zeros are used."""
    resident, streamed = (load_target(GOLDEN / "int4", dtype=torch.float32, weights=w) for w in ("resident", "stream"))
    chosen = []
    for layer in resident.model.layers[1:]:
        layer.mlp.gate.register_forward_hook(
            lambda _module, _inputs, output: chosen.append(output[1].unique().tolist())
        )
    tokens = torch.tensor([[7, 9]])
    resident.forward(tokens)
    streamed.forward(tokens)
    layers = streamed.census.layers
    expected = sum(weight.num_bytes for layer in layers for weight in layer.weights.values())
    for layer, experts in zip(layers[1:], chosen, strict=True):
        assert len(experts) < len(layer.experts)
        expected += sum(weight.num_bytes for expert in experts for weight in layer.experts[expert].values())
    assert streamed.bytes_read == expected <= sum(streamed.layer_bytes(i, 2) for i in range(7))


def test_a_pass_that_is_left_early_leaves_no_thread():
    """Bug: a closed generator, or an error of the consumer, leaves a thread that reads on."""
    target = load_target(GOLDEN / "int4", dtype=torch.float32, weights="stream")
    streams = target.embed(texts())
    with closing(target.stream_layers(streams)) as layers:
        next(layers)
        assert not no_reader_is_left()
    assert no_reader_is_left()

    def refuse(*_):
        raise RuntimeError("dequantization failed")

    target.dequantize_int4 = refuse
    with pytest.raises(RuntimeError, match="dequantization failed"):
        one_pass(target, texts())
    assert no_reader_is_left()
    with pytest.raises(Eagle3RefError, match="argmax"):
        target.score(torch.full((1, 64), float("nan")), torch.tensor([0]))
    assert no_reader_is_left()


def test_the_dequantization_is_the_callers_and_only_of_what_is_used():
    """Bug: the fast twin is accepted and never called; experts that no token chose are unpacked for nothing."""
    calls: dict[str, list[str]] = {"streamed": [], "packed": [], "expanded": []}
    settings = {"streamed": {"weights": "stream"}, "packed": {"packed": True}, "expanded": {"packed": False}}
    for kind, each in settings.items():

        def twin(packed, scale, shape, name, names=calls[kind]):
            names.append(name)
            return dequantize_int4(packed, scale, shape, name)

        one_pass(load_target(GOLDEN / "int4", dtype=torch.float32, dequantize_int4=twin, **each), texts())
    assert len(calls["expanded"]) == len(set(calls["expanded"])) == 6 * 8 * 3
    assert calls["streamed"] == calls["packed"]  # of the chosen experts, ascending
    assert 6 * 6 * 3 < len(calls["streamed"]) < 6 * 8 * 3


def test_pieces_of_the_head_give_argmax_and_gap_of_the_whole(monkeypatch):
    """Bug: a token's number counted within its piece, a tie given to the later piece, a gap to the wrong token."""
    generator = torch.Generator().manual_seed(2)
    states, head = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((40, 8), (50, 8)))
    head[30] = head[3]  # exact ties, in the same piece and in two
    head[4] = head[3]
    states[:8] = head[3]
    tokens = torch.randint(50, (40,), generator=generator)
    monkeypatch.setattr(kimi_head, "BLOCK_ROWS", 16)
    logprobs = (states @ head.T).log_softmax(-1)
    gap = logprobs.max(-1).values - logprobs.gather(-1, tokens[:, None])[:, 0]
    for size in (1, 7, 50):
        scores = kimi_head.score(states, tokens, head.split(size))
        assert torch.equal(scores.argmax, logprobs.argmax(-1))
        assert scores.argmax[:8].tolist() == [3] * 8
        assert scores.logprob_gap.dtype == torch.float32
        assert (scores.logprob_gap >= 0).all()
        torch.testing.assert_close(scores.logprob_gap.double(), gap, rtol=1e-6, atol=1e-6)


def test_a_draft_can_share_the_mapped_embedding_and_head(tmp_path):
    """Bug: the mapped tensors are shifted by the header, or of the computing dtype, which would cost 9 GB."""
    folder = tiny.target_folder(tmp_path / "t")
    resident = KimiK25Target.from_folder(folder)
    streamed = load_target(folder, dtype=torch.float32, weights="stream")
    assert torch.equal(streamed.embedding(), resident.embedding())
    assert torch.equal(streamed.lm_head(), resident.lm_head())
    config, tensors = tiny.draft_parts("mla", draft_vocab_size=...)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del tensors[name]
    draft = tiny.write_draft(tmp_path / "d", config, tensors)
    ours, theirs = (load_draft(draft, target=target) for target in (streamed, resident))
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, dict(theirs.named_parameters())[name])
    assert streamed.bytes_read == 0
    assert isinstance(streamed, LayerMajorTarget)
    assert (streamed.device, streamed.dtype) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("sequences", "found"),
    [
        ([], "no sequence"),
        ([[1], []], "sequence 1 without a token"),
        ([[1], [2, 999999]], r"\(sequence 1, position 1\)"),
    ],
)
@pytest.mark.parametrize("weights", ["resident", "stream"])
def test_sequences_that_cannot_be_embedded_are_refused(weights, sequences, found):
    """Bug: a token behind the vocabulary reads the bytes of another tensor."""
    target = load_target(GOLDEN / "int4", dtype=torch.float32, weights=weights)
    with pytest.raises(Eagle3RefError, match=found):
        target.embed([torch.tensor(tokens, dtype=torch.int64) for tokens in sequences])

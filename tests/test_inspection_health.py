"""The health check of a draft's weights: quiet on what is sound, one finding for each thing that is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3ref import load_draft, nano
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.inspection import DraftInspection, inspect_draft, stored
from eagle3ref.inspection.health import check_health
from eagle3ref.inspection.initialization import spread
from eagle3ref.inspection.rows import row_hashes
from eagle3ref.inspection.stored import StoredDraft
from eagle3ref.nn import RMSNorm
from eagle3ref.target import shared_weights
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader, TraceWriter
from eagle3ref.weights import Weights

GOLDEN = Path(__file__).parent / "golden" / "engines"


def altered_nano(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """The nano draft, a trained one, with its tensors changed."""
    folder.mkdir()
    tensors = load_file(nano.draft_path() / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text((nano.draft_path() / "config.json").read_text())
    return folder


def findings(found: DraftInspection) -> list[tuple[str, bool]]:
    return [(finding.tensor, finding.is_fault) for finding in found.findings]


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("name", ["draft", "draft_mla", "golden"])
def test_trained_drafts_are_quiet(name: str, with_target: bool) -> None:
    """Would catch a false alarm, which costs an inspection its readers."""
    draft = {"draft": nano.draft_path(), "draft_mla": nano.mla_draft_path(), "golden": GOLDEN / "draft"}[name]
    target = GOLDEN / "target" if name == "golden" else nano.target_path()
    found = inspect_draft(draft, target if with_target else None)
    assert (found.findings, found.oddities, found.problem) == ((), (), None)
    assert found.health is not None
    assert found.health.fc is not None
    assert (found.health.head is not None) == with_target


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("gqa", {}),
        ("mla", {}),
        ("gqa", {"fc_norm": True}),
        ("gqa", {"norm_before_fc": True}),
        ("gqa", {"bias": True, "attention_bias": True}),
        ("gqa", {"num_layers": 2}),
        ("gqa", {"norm_before_residual": True}),
    ],
)
@pytest.mark.parametrize("with_target", [False, True])
def test_variants_are_quiet(kind: str, keys: dict[str, bool], with_target: bool, tmp_path: Path) -> None:
    """Would catch a check that knows only the plain head."""
    folder = tiny.draft_folder(tmp_path / "draft", kind, **keys)
    found = inspect_draft(folder, tiny.target_folder(tmp_path / "target") if with_target else None)
    assert found.problem is None
    assert [name for name, _ in findings(found) if name != "embed_tokens.weight"] == []


def make_nan(tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.mlp.up_proj.weight"][-1, -1] = torch.inf


def zero_gate(tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.mlp.gate_proj.weight"].zero_()


def zero_norm(tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.hidden_norm.weight"].zero_()


def tiny_fc(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] *= 1e-3


def blind_fc(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"][:, 160:320] = 0


def zero_head(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"].zero_()


def random_head(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"].normal_(0, 0.02)


def cut_head_by_offsets(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"] = shared_weights(nano.target_path()).lm_head()[tensors["d2t"]].clone()


def padded_head(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"][-40:] = 0


def shuffled_map(tensors: dict[str, Tensor]) -> None:
    ids = tensors["d2t"] + torch.arange(640)
    tensors["d2t"] = ids[torch.randperm(640, generator=torch.Generator().manual_seed(0))] - torch.arange(640)
    del tensors["t2d"]


def map_of_other_data(tensors: dict[str, Tensor]) -> None:
    """As when a fine-tuning run scans new data: sorted, in range, and another vocabulary."""
    ids = torch.randperm(1024, generator=torch.Generator().manual_seed(0))[:640].sort().values
    tensors["d2t"] = ids - torch.arange(640)
    tensors["t2d"] = torch.isin(torch.arange(1024), ids)


def random_embedding(tensors: dict[str, Tensor]) -> None:
    tensors["embed_tokens.weight"] = torch.randn(1024, 160).bfloat16() * 0.02


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (zero_gate, [("layers.0.mlp.gate_proj.weight", True)]),
        (zero_norm, [("layers.0.hidden_norm.weight", True)]),
        (tiny_fc, [("fc.weight", True)]),
        (blind_fc, [("fc.weight", False)]),
        (zero_head, [("lm_head.weight", True)]),
        (random_head, [("lm_head.weight", True)]),
        (cut_head_by_offsets, [("lm_head.weight", True), ("d2t", True)]),
        (padded_head, [("lm_head.weight", True)]),
        (shuffled_map, [("d2t", True), ("d2t", False)]),
        (map_of_other_data, [("d2t", True)]),
        (random_embedding, [("embed_tokens.weight", False), ("embed_tokens.weight", False)]),
    ],
)
def test_each_fault_is_found_and_nothing_else(
    change: Callable[[dict[str, Tensor]], None], expected: list[tuple[str, bool]], tmp_path: Path
) -> None:
    """Would catch a fault that passes, or one fault that is reported as several."""
    found = inspect_draft(altered_nano(tmp_path / "draft", change), nano.target_path())
    assert findings(found) == expected
    assert found.is_faulty == any(is_fault for _, is_fault in expected)
    for finding in found.findings:
        assert finding.meaning.endswith(".")
        assert finding.action.endswith(".")


def test_nan_is_told_once(tmp_path: Path) -> None:
    """Would catch one fault told twice, by the loader and by the check, or a check that stops where loading does."""
    folder = altered_nano(tmp_path / "draft", make_nan)
    loaded = inspect_draft(folder, nano.target_path())
    assert loaded.problem is not None
    assert findings(loaded) == []
    assert loaded.health is not None
    assert findings(inspect_draft(folder)) == [("layers.0.mlp.up_proj.weight", True)]


def test_untrained_draft_is_told(tmp_path: Path) -> None:
    """Would catch an export from before the first step: norms of exactly 1 over matrices as they were drawn."""

    def initialise(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("norm.weight"):
                tensor.fill_(1)
            elif tensor.is_floating_point():
                torch.nn.init.kaiming_uniform_(tensor, a=5**0.5)

    found = inspect_draft(altered_nano(tmp_path / "draft", initialise))
    assert findings(found) == [("all tensors", True), ("lm_head.weight", True)]

    def reset_norms(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("norm.weight"):
                tensor.fill_(1)

    # Small steps in bf16 can leave every norm at 1: no fault of its own.
    assert inspect_draft(altered_nano(tmp_path / "norms", reset_norms)).findings == ()


def test_mean_near_zero_is_no_fault(tmp_path: Path) -> None:
    """Would catch the reported false alarm: an fc whose mean is 0 and whose output is as large as ever."""

    def centre(tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] -= tensors["fc.weight"].float().mean().bfloat16()

    found = inspect_draft(altered_nano(tmp_path / "draft", centre))
    assert found.findings == ()
    assert found.health is not None
    assert found.health.fc is not None
    assert abs(found.health.fc.weight_mean) < 1e-4
    assert found.health.fc.kept > 0.99


@pytest.mark.parametrize("factor", [1.0, 1e-2, 1e-3])
def test_fc_scale_is_what_the_norm_makes_of_it(factor: float, tmp_path: Path) -> None:
    """Would catch another formula than RMSNorm's: the norm itself, on random inputs of unit RMS, is the oracle."""

    def scale(tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] *= factor

    folder = altered_nano(tmp_path / "draft", scale)
    health = inspect_draft(folder).health
    assert health is not None
    fc = health.fc
    weight = load_file(folder / "model.safetensors")["fc.weight"].double()
    output = torch.randn(4000, 480, dtype=torch.float64) @ weight.T
    assert fc is not None
    assert fc.mean_square == pytest.approx(float(output.square().mean()), rel=0.05)
    normed = RMSNorm(160, fc.eps).double()(output)
    assert fc.kept == pytest.approx(float(normed.square().mean().sqrt().detach()), rel=0.05)


def write_states(path: Path, points: tuple[int, ...], scale: float) -> Path:
    target = TargetIdentity("t", "", "kimi_k25", 8, 160, 1024, "")
    header = TraceHeader(target, None, points, "bfloat16", RecordedSampling(0.0, 1.0, 0, None), "by hand")
    with TraceWriter.open(path, header) as writer:
        for i in range(3):
            states = {point: (torch.randn(12, 160) * scale).bfloat16() for point in points}
            writer.add(RecordedSequence(f"s{i}", torch.arange(12) + i, 2, states))
    return path


def test_fc_runs_on_the_states_of_a_trace(tmp_path: Path) -> None:
    """Would catch a scale for unit inputs where the real ones are known to be tiny; and states of other layers."""
    trace = write_states(tmp_path / "trace", (2, 4, 5), 1e-4)
    found = inspect_draft(nano.draft_path(), nano.target_path(), corpus=trace)
    assert found.health is not None
    fc = found.health.fc
    assert fc is not None
    draft = load_draft(nano.draft_path(), target=nano.target_path())
    states = [
        torch.cat([load_file(file)[f"aux_hidden_states.{point}"] for point in (2, 4, 5)], -1)
        for file in sorted(trace.glob("*.safetensors"))
    ]
    assert fc.mean_square == pytest.approx(float(draft.fuse(torch.cat(states)).double().square().mean()))
    assert "36 states" in fc.inputs
    assert findings(found)[0] == ("fc.weight", True)
    other = inspect_draft(
        nano.draft_path(), nano.target_path(), corpus=write_states(tmp_path / "other", (1, 2, 3), 1e-4)
    )
    assert other.health is not None
    assert other.health.fc is not None
    assert other.health.fc.inputs.startswith("inputs of unit RMS (")


def test_blocks_do_not_change_what_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Would catch rows lost or counted twice at the borders of blocks, or NaN that only the first block shows."""
    folder = altered_nano(tmp_path / "draft", random_embedding)
    matrix = torch.randn(333, 96)
    whole, hashes = inspect_draft(folder, nano.target_path()), row_hashes(matrix)
    ratios = spread(matrix)
    monkeypatch.setattr(stored, "BLOCK_ELEMENTS", 1000)
    cut = inspect_draft(folder, nano.target_path())
    assert whole.findings == cut.findings
    assert whole.health is not None
    assert cut.health is not None
    assert (whole.health.head_rows, str(whole.health.head)) == (cut.health.head_rows, str(cut.health.head))
    assert torch.equal(row_hashes(matrix), hashes)
    assert spread(matrix) == pytest.approx(ratios)
    assert findings(inspect_draft(altered_nano(tmp_path / "nan", make_nan))) == [("layers.0.mlp.up_proj.weight", True)]


def test_eight_bit_weights_are_judged_with_their_scales(tmp_path: Path) -> None:
    """Would catch fc judged by its raw int8 values, or 8-bit tensors that torch has no isfinite for."""

    def quantize(tensors: dict[str, Tensor]) -> None:
        weight = tensors["fc.weight"].float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        tensors["fc.weight"], tensors["fc.weight_scale"] = (weight / scale).round().to(torch.int8), scale

    found = inspect_draft(altered_nano(tmp_path / "draft", quantize))
    plain = inspect_draft(nano.draft_path())
    assert found.health is not None
    assert plain.health is not None
    assert found.health.fc is not None
    assert plain.health.fc is not None
    assert found.findings == ()
    assert found.health.fc.mean_square == pytest.approx(plain.health.fc.mean_square, rel=0.01)


def test_map_and_head_are_checked_without_the_target(tmp_path: Path) -> None:
    """Would catch a t2d of another export, or a head cut by offsets, that hides behind a missing embedding."""

    def other_t2d(tensors: dict[str, Tensor]) -> None:
        tensors["t2d"] = ~tensors["t2d"]

    for name, change, expected in (
        ("t2d", other_t2d, "different exports"),
        ("head", cut_head_by_offsets, "lm_head[d2t]"),
    ):
        found = inspect_draft(altered_nano(tmp_path / name, change))
        assert len(found.unchecked) == 1
        (oddity,) = found.oddities
        assert expected in oddity


def test_a_target_of_unknown_names_is_not_compared(tmp_path: Path) -> None:
    """Would catch a look at a sound draft that fails because the target calls its head something else."""
    target = tmp_path / "target"
    target.mkdir()
    save_file({"transformer.wte.weight": torch.zeros(tiny.VOCAB, tiny.WIDTH)}, target / "model.safetensors")
    (target / "config.json").write_text((tiny.target_folder(tmp_path / "kimi") / "config.json").read_text())
    config, tensors = tiny.draft_parts(target_hidden_size=tiny.WIDTH)
    found = check_health(
        StoredDraft(
            Weights(tiny.write_draft(tmp_path / "draft", config, tensors)),
            {name: name for name in tensors},
            JsonFields.read(tmp_path / "draft" / "config.json"),
        ),
        inspect_draft(tmp_path / "draft").config,
        None,
        target=shared_weights(target),
    )
    assert (found.head, found.embedding) == (None, None)

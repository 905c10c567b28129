"""Drafts and MLA attention against numbers of other libraries, frozen: speculators 0.9.0 and transformers.

``tests/peers`` makes the numbers again from the libraries themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peers import mla_variants, variants
from safetensors.torch import load_file
from torch import Tensor

from eagle3ref.draft import Eagle3Draft, load_draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import Prefix

# Published files say little about ids and norms, and are warned of; the numbers are what counts here.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

GOLDEN = Path(__file__).parent / "golden" / "peers"
DEEPSEEK = load_file(GOLDEN / "deepseek_attention.safetensors")
SPECULATORS = load_file(GOLDEN / "speculators_0_9_0.safetensors")

# Largest difference over the largest logit of the variant. Both sides run in fp32 and add in another order.
TOLERANCE = 2e-6


# In training the later steps keep the window of the row. Servers move it on, and so does this package.
STEPS_COMPARED = {"sliding window": 1}

# Variants that the config of a plain draft describes as well: the same in other words, or told by the tensors alone.
PLAIN = {
    "llama",
    "qwen3 by default",
    "keys left out",
    "older architecture name",
    "no head_dim",
    "two layers",
    "attention biases",
    "qwen3 biases",
    "part of the head, default rope",
}


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def steps(draft: Eagle3Draft, aux: Tensor, tokens: Tensor) -> Tensor:
    """Logits [NUM_STEPS, NUM_ROWS, Vd] of every row as a root: one pass over all rows, then one row of each per step.

    Step s gives row t the token after the next s, or 0 past the end, and position t + s.
    """
    rows = torch.arange(len(tokens))
    causal = rows <= rows[:, None]
    output = draft(draft.fuse(aux)[None, None], tokens[None, None], rows[None, None], mask=causal)
    found = [draft.logits(output.normed)[0, 0]]
    prefix = [Prefix(type(layer)(*(part[:, 0] for part in layer)), causal[None, :, None]) for layer in output.rows]
    state, own = output.state.transpose(1, 2), None
    for step in range(1, variants.NUM_STEPS):
        shifted = torch.cat((tokens[step:], tokens.new_zeros(step)))
        mask = torch.ones(1, step, dtype=torch.bool)
        output = draft(state, shifted[None, :, None], (rows + step)[None, :, None], mask=mask, own=own, prefix=prefix)
        state, own = output.state, output.rows
        found.append(draft.logits(output.normed)[0, :, 0])
    return torch.stack(found)


@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_logits_are_those_of_speculators(variant, tmp_path):
    """Bug: a key of speculators' config read otherwise than speculators does, or a variant computed otherwise."""
    folder = variants.write(variant, tmp_path)
    draft = load_draft(folder, capture_points=(2, 4, 6)[: variants.num_aux_states(variants.config(variant))])
    with torch.no_grad():
        found = steps(draft, *map(torch.from_numpy, variants.inputs(variant)))
    errors = [relative_error(*pair) for pair in zip(found, SPECULATORS[variant], strict=True)]
    assert max(errors[: STEPS_COMPARED.get(variant)]) < TOLERANCE, errors


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("variant", mla_variants.VARIANTS)
def test_mla_attention_is_that_of_transformers(variant, absorbed, tmp_path):
    """Bug: YaRN's temperature or frequencies, the pairs of the rope, or the split of heads, in the MLA draft."""
    attention = load_draft(mla_variants.write(variant, tmp_path)).layers[0].self_attn
    attention.absorbed = absorbed
    x, positions = torch.from_numpy(mla_variants.inputs(variant)), torch.from_numpy(mla_variants.POSITIONS)
    found, _ = attention(x[None, None], positions[None, None], mask=torch.ones(len(x), len(x)).tril().bool())
    assert relative_error(found[0, 0], DEEPSEEK[variant]) < TOLERANCE


@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_every_variant_needs_its_key(variant, tmp_path):
    """Bug: a variant whose key changes nothing, so that its numbers prove nothing."""
    kind = variants.config(variant)["transformer_layer_config"].get("model_type")
    folder = variants.write(variant, tmp_path)
    plain = variants.config("llama" if kind == "llama" else "qwen3 by default")
    (folder / "config.json").write_text(json.dumps(plain))
    try:
        draft = load_draft(folder, capture_points=(2, 4, 6))
    except Eagle3RefError:
        return  # it has tensors that only its own config describes
    with torch.no_grad():
        found = steps(draft, *map(torch.from_numpy, variants.inputs(variant)))
    assert (relative_error(found, SPECULATORS[variant]) > 1e-3) == (variant not in PLAIN)

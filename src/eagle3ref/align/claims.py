"""What a dump's labels say: "embed", "layer3", "layers.30.output", or the capture points that its reader believes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from eagle3ref.align.boundary import Boundary
from eagle3ref.align.rows import FINAL_LABEL
from eagle3ref.dumps import Dump
from eagle3ref.errors import Eagle3RefError

# Of a bare number: the layer whose input it is, or the layer whose output it is.
Convention = Literal["inputs", "outputs"]

_EMBEDDING = re.compile(r"(wte|embed(ding)?s?([_. ](tokens|output|out))?|inputs_embeds)", re.IGNORECASE)
_FINAL = re.compile(r"(final.*|last_hidden_states?|(final_)?norm|hidden_state)", re.IGNORECASE)
_BEFORE_FIRST = re.compile(r"(layers?)?[_. \[]?-1\]?", re.IGNORECASE)  # of other numbers a hyphen is no minus
_LAYER = re.compile(
    r"(?:model[_.])?(?P<side>in|input|out|output)?(?:put)?[_. ]?(?:layers?-?)?[_. \[]?(?P<layer>\d+)\]?"
    r"(?:[_. ](?P<end>in|input|out|output))?",
    re.IGNORECASE,
)
_HIDDEN_STATES = re.compile(r"hidden_states?[_. \[]?(?P<layer>\d+)\]?", re.IGNORECASE)


@dataclass(frozen=True)
class Claim:
    """What one label says.

    Args:
        text: the label.
        as_input: the capture point if a number names the layer entered.
        as_output: the capture point if it names the layer left. Equal to ``as_input`` where the label leaves no choice.
        is_final: whether it says the final state.
        normed: of a final state, whether the final norm is applied; None where that is left open.
        is_believed: by the reader of the format; no label says it.
    """

    text: str
    as_input: int
    as_output: int
    is_final: bool = False
    normed: bool | None = None
    is_believed: bool = False

    def point(self, convention: Convention) -> int:
        """The capture point, by a convention."""
        return self.as_input if convention == "inputs" else self.as_output

    def holds(self, boundary: Boundary, convention: Convention) -> bool:
        """Whether the label names that boundary."""
        if boundary.kind == "final_norm":
            return self.is_final and self.normed is not False
        is_before_norm = not self.is_final or self.normed is not True
        return is_before_norm and boundary.capture_point == self.point(convention)


def parse_claim(text: str, num_layers: int) -> Claim | None:
    """What a label says; None for one that says nothing, as ``aux_0`` does.

    ``layer3`` may mean the input or the output of layer 3. -1 is the output of the layer before the first, the
    embedding. ``hidden_states_3`` is counted as transformers does: its input.
    """
    if _EMBEDDING.fullmatch(text) or _BEFORE_FIRST.fullmatch(text):
        return Claim(text, 0, 0)
    if _FINAL.fullmatch(text):
        return Claim(text, num_layers, num_layers, is_final=True)
    if found := _HIDDEN_STATES.fullmatch(text):
        layer = int(found["layer"])
        return Claim(text, layer, layer)
    if not (found := _LAYER.fullmatch(text)):
        return None
    layer, side = int(found["layer"]), (found["side"] or found["end"] or "").lower()
    if side:
        point = layer if side.startswith("in") else layer + 1
        return Claim(text, point, point)
    return Claim(text, layer, layer + 1)


def claims_of(
    dump: Dump, labels: Sequence[str], claimed: Sequence[str] | None, num_layers: int
) -> Mapping[str, Claim | None]:
    """What is said of each state: by the user, else by the labels themselves, else by the dump's reader.

    Args:
        dump: whose ``capture_points`` and final state are believed where labels say nothing.
        labels: of the states, in order.
        claimed: the user's names for them, in the same order; those of a final state may be left out.
        num_layers: of the target.

    Raises:
        Eagle3RefError: as many names as states are not there, or a name that names no layer.
    """
    states = [label for label in labels if label != FINAL_LABEL]
    claims: dict[str, Claim | None] = {label: parse_claim(label, num_layers) for label in labels}
    if claimed is not None:
        if len(claimed) not in (len(states), len(labels)):
            _refuse(f"{len(claimed)} names for the states {', '.join(labels)}", f"{len(states)} names")
        for label, text in zip(labels, claimed, strict=False):
            claims[label] = parse_claim(text, num_layers)
            if claims[label] is None:
                _refuse(f"the name {text!r}", 'names such as embed, layer3, 31, "layers.30.output" or final')
        return claims
    points = dump.capture_points
    if points is not None and len(points) == len(states) and not any(claims[label] for label in states):
        claims |= {label: Claim(str(p), p, p, is_believed=True) for label, p in zip(states, points, strict=True)}
    if FINAL_LABEL in claims:
        normed = dump.sequence(dump.ids[0]).final_is_normed
        text = {None: "final", True: "final, normed", False: "final, before the norm"}[normed]
        claims[FINAL_LABEL] = Claim(text, num_layers, num_layers, is_final=True, normed=normed, is_believed=True)
    return claims


def _refuse(found: str, expected: str) -> NoReturn:
    raise Eagle3RefError(
        "reading what the states of the dump are called",
        found=found,
        expected=f"{expected}, in the order of the dump",
        action="Correct --labels, or leave it out.",
    )

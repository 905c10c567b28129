"""Which layer is this? The states of a dump held against every place in the target that they may come from."""

from eagle3ref.align.align import DEFAULT_MAX_SEQUENCES, DEFAULT_MAX_TOKENS, Alignment, align
from eagle3ref.align.boundary import Boundary
from eagle3ref.align.claims import Claim, parse_claim
from eagle3ref.align.consequences import beside_draft, ids_by_engine
from eagle3ref.align.match import Candidate, TensorMatch
from eagle3ref.align.measure import Place
from eagle3ref.align.rows import Shift

__all__ = [
    "DEFAULT_MAX_SEQUENCES",
    "DEFAULT_MAX_TOKENS",
    "Alignment",
    "Boundary",
    "Candidate",
    "Claim",
    "Place",
    "Shift",
    "TensorMatch",
    "align",
    "beside_draft",
    "ids_by_engine",
    "parse_claim",
]

"""Traps in attention backends: trees where only chains run, a target's backend under another draft."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3ref.explain.case import Case
from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_MLA_ONLY = ("flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla")
_REFUSES_ANYWHERE = "trtllm_mha"  # checked for the target as well, whatever the draft runs on
_DRAFT_UTILS = "srt/speculative/draft_utils.py"


def refused_topk(wiring: Wiring) -> Iterator[Trap]:
    """A tree on a backend whose draft decode runs chains only."""
    case = wiring.case
    tree, profile = wiring.tree.tree, case.profile
    if tree is None or tree.topk == 1:
        return
    for backend in _refusing(case):
        yield Trap(
            "topk-refused",
            "fails at start",
            f"topk {tree.topk} on attention backend {backend}",
            "ValueError: this backend only supports topk = 1 for speculative decoding",
            _use_another(case),
            case.source("topk_refused_by"),
        )
    flags, paged = case.flags, profile.paged_topk_backends
    is_paged = flags.page_size is not None and flags.page_size > 1
    if is_paged and paged is not None and flags.attention_backend is not None and flags.attention_backend not in paged:
        yield Trap(
            "paged-topk-refused",
            "fails at start",
            f"topk {tree.topk} with page size {flags.page_size} on attention backend {flags.attention_backend}",
            f"ValueError: only {', '.join(paged)} take topk > 1 with page size > 1",
            f"Write --page-size 1, or --attention-backend {' or '.join(paged)}.",
            case.source("paged_topk_backends"),
        )


def unnamed_backend(wiring: Wiring) -> Iterator[Trap]:
    """A tree for an MLA draft, and a backend that the server will choose by the GPU."""
    case = wiring.case
    tree = wiring.tree.tree
    if case.draft.attention_kind != "mla" or tree is None or tree.topk == 1 or _draft_backend(case) is not None:
        return
    yield Trap(
        "unnamed-backend",
        "harmless",
        f"topk {tree.topk} with an MLA draft, and no attention backend is named",
        "on some GPUs the default backend takes chains only, and the server fails at start",
        "Write --speculative-draft-attention-backend fa3 (or triton).",
        case.source("topk_refused_by"),
    )


def inherited_backend(wiring: Wiring) -> Iterator[Trap]:
    """A backend made for an MLA target, handed on to a draft without MLA."""
    case = wiring.case
    backend = _draft_backend(case)
    if case.profile.engine != "SGLang" or case.draft.attention_kind != "gqa" or backend not in _MLA_ONLY:
        return
    yield Trap(
        "inherited-backend",
        "fails at first forward",
        f"the draft has no MLA, and runs on the target's attention backend {backend}",
        "an error in that backend at the first draft",
        "Add --speculative-draft-attention-backend fa3 (or triton).",
        read_in("SGLang", f"{_DRAFT_UTILS}; issue #23490"),
    )


def _draft_backend(case: Case) -> str | None:
    """What draft decode runs on, as far as the flags say."""
    flags = case.flags
    return flags.draft_attention_backend or flags.decode_attention_backend or flags.attention_backend


def _refusing(case: Case) -> list[str]:
    flags, refused = case.flags, case.profile.topk_refused_by
    own = _draft_backend(case)
    found = {own} if own in refused or (own == "flashinfer" and case.draft.attention_kind == "mla") else set()
    found |= {_REFUSES_ANYWHERE} & {*refused} & {flags.attention_backend, flags.decode_attention_backend}
    return sorted(name for name in found if name is not None)


def _use_another(case: Case) -> str:
    flag = (
        "--attention-backend" if case.flags.draft_attention_backend is None else "--speculative-draft-attention-backend"
    )
    return f"Write --speculative-eagle-topk 1, or {flag} fa3 (or triton)."

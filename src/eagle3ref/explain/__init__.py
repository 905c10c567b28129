"""What an engine will really run with a draft, a target and flags, before it is started."""

from eagle3ref.explain.as_engine import EngineDraft, load_draft_as
from eagle3ref.explain.explanation import Explanation, explain
from eagle3ref.explain.flags import Misspelling, ServerFlags, parse_server_flags
from eagle3ref.explain.statements import Statement
from eagle3ref.explain.trap import Severity, Trap

__all__ = [
    "EngineDraft",
    "Explanation",
    "Misspelling",
    "ServerFlags",
    "Severity",
    "Statement",
    "Trap",
    "explain",
    "load_draft_as",
    "parse_server_flags",
]

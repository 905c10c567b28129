"""The EAGLE-3 draft: model, checkpoint, draft loop."""

from eagle3ref.draft.checkpoint import DraftWarning, load_draft
from eagle3ref.draft.export import ExportFormat, export_draft
from eagle3ref.draft.model import DraftOutput, Eagle3Draft
from eagle3ref.draft.propose import DraftLoop, FirstLevel, best_next, propose, propose_sampled

__all__ = [
    "DraftOutput",
    "DraftWarning",
    "Eagle3Draft",
    "ExportFormat",
    "FirstLevel",
    "DraftLoop",
    "best_next",
    "export_draft",
    "load_draft",
    "propose",
    "propose_sampled",
]

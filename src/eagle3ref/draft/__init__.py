"""The EAGLE-3 draft: model, checkpoint, draft loop."""

from eagle3ref.draft.checkpoint import DraftWarning, load_draft
from eagle3ref.draft.model import DraftOutput, Eagle3Draft
from eagle3ref.draft.propose import FirstLevel, best_next, propose

__all__ = ["DraftOutput", "DraftWarning", "Eagle3Draft", "FirstLevel", "best_next", "load_draft", "propose"]

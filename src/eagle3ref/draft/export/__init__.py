"""Writing a draft as one engine reads it: ``folder`` writes, the other files say what goes into it."""

from eagle3ref.draft.export.folder import export_draft
from eagle3ref.draft.export.layouts import ExportFormat

__all__ = ["ExportFormat", "export_draft"]

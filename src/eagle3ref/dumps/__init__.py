"""Hidden states that other engines and training pipelines wrote: what they are, and how they become a trace.

``read`` tells the formats apart, and ``dump`` is what every reader makes of one. A reader is a file: ``specforge``,
``modelopt``, ``speculators``, ``speculators_pt`` and ``named`` share ``files`` and ``layout``. SGLang has two:
``meta_info`` with ``responses`` and ``state_rows``, and ``sglang`` with ``sglang_parts`` and ``sglang_rows``; both ask
``sglang_layers``. ``importer`` writes the trace, through ``convert`` and ``checks``; ``target_head`` and ``versus_run``
hold the rows against the target.
"""

from eagle3ref.dumps.convert import FinalState
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.importer import import_dump
from eagle3ref.dumps.read import FORMATS, read_dump

__all__ = ["FORMATS", "Dump", "DumpedSequence", "FinalState", "import_dump", "read_dump"]

"""The ground truth for EAGLE-3 speculative decoding: draft head, trees, verification, acceptance.

Shape letters: B batch, P groups (roots) of a sequence, Q new rows, T tokens, N tree nodes, K topk, S steps, H heads,
C hidden size, A capture points, V target vocabulary, Vd draft vocabulary.
"""

from eagle3ref import nano
from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, DraftConfig, TargetConfig, TreeConfig
from eagle3ref.decode import Decoded, decode
from eagle3ref.draft import Eagle3Draft, export_draft, load_draft, propose
from eagle3ref.dumps import Dump, import_dump, read_dump
from eagle3ref.engines import SGLANG_0_5_23, SGLANG_LOG_ERAS, EngineProfile, engine_profile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain import EngineDraft, Explanation, explain, load_draft_as
from eagle3ref.positions import SequenceRanks, rank_positions, replay_positions
from eagle3ref.replay import SequenceRounds, replay, replay_rounds
from eagle3ref.statistics import Interval
from eagle3ref.target import Target, load_target
from eagle3ref.target.generate import Sampling
from eagle3ref.trace import Prompt, Trace, capture, read_prompts
from eagle3ref.tree import DraftTree, build_tree
from eagle3ref.verify import Verification, verify_greedy, verify_sampled
from eagle3ref.version import __version__

__all__ = [
    "SGLANG_0_5_23",
    "SGLANG_LOG_ERAS",
    "AcceptanceCounts",
    "AcceptanceRule",
    "Decoded",
    "DraftConfig",
    "DraftTree",
    "Dump",
    "Eagle3Draft",
    "Eagle3RefError",
    "EngineDraft",
    "EngineProfile",
    "Explanation",
    "Interval",
    "Prompt",
    "Sampling",
    "SequenceRanks",
    "SequenceRounds",
    "Target",
    "TargetConfig",
    "Trace",
    "TreeConfig",
    "Verification",
    "__version__",
    "build_tree",
    "capture",
    "decode",
    "engine_profile",
    "explain",
    "export_draft",
    "import_dump",
    "load_draft",
    "load_draft_as",
    "load_target",
    "nano",
    "propose",
    "rank_positions",
    "read_dump",
    "read_prompts",
    "replay",
    "replay_positions",
    "replay_rounds",
    "verify_greedy",
    "verify_sampled",
]

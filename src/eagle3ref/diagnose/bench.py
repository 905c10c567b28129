"""What a mutation laboratory has to work with, and what of it is missing for a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.config import AcceptanceRule, RopeConfig, TreeConfig, default_rule
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.diagnose.wiring import Stream
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain import EngineDraft
from eagle3ref.replay.replayability import Replayability, replayability
from eagle3ref.target import SharedWeights, Target, shared_weights
from eagle3ref.trace import Trace


@dataclass(frozen=True)
class Bench:
    """A draft, a trace and perhaps a target, as far as the catalogue asks.

    Args:
        trace: at least one sequence.
        draft: as it was trained.
        tree: the server's.
        rule: the server's.
        shared: the target's embedding and head, if a target was given.
        target_rope: of the target, if its config.json says so in a way that is understood.
        engine_draft: as an engine reads the draft's files.
        has_final_hidden_state: the trace holds it.
        has_first_choices: the trace holds the target's first choice after every token.
    """

    trace: Trace
    draft: Eagle3Draft
    tree: TreeConfig
    rule: AcceptanceRule
    shared: SharedWeights | None
    target_rope: RopeConfig | None
    engine_draft: EngineDraft | None
    has_final_hidden_state: bool
    has_first_choices: bool

    @classmethod
    def of(
        cls,
        trace: Trace,
        draft: Eagle3Draft,
        tree: TreeConfig,
        rule: AcceptanceRule,
        target: Target | str | Path | None,
        engine_draft: EngineDraft | None,
    ) -> Bench:
        """Look at the first sequence for what the trace holds, and at the target's config.json for its rope."""
        shared = None if target is None else shared_weights(target)
        first = trace[0]
        return cls(
            trace=trace,
            draft=draft,
            tree=tree,
            rule=rule,
            shared=shared,
            target_rope=None if shared is None else _rope(shared, draft),
            engine_draft=engine_draft,
            has_final_hidden_state=first.final_hidden_state is not None,
            has_first_choices=first.argmax is not None,
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the trace holds the target's first choices."""
        return default_rule(self.trace.header.sampling.temperature).name == "greedy"

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(entry.num_tokens for entry in self.trace.entries)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max(entry.prompt_length for entry in self.trace.entries)

    def lacking(self, streams: Sequence[Stream]) -> str:
        """What to do so that the trace holds these; "" if it does."""
        recorded = set(self.trace.header.capture_points)
        wanted = {stream for stream in streams if stream != "final"}
        actions = []
        if not wanted <= recorded:
            actions.append(f"--capture-points {','.join(map(str, sorted(recorded | wanted)))}")
        if "final" in streams and not self.has_final_hidden_state:
            actions.append("--final-hidden-state")
        return f"Record with {' '.join(actions)}." if actions else ""

    def replayable(self, rule: AcceptanceRule) -> Replayability:
        """What the trace says about another rule."""
        final, target = self.has_final_hidden_state, self.shared is not None
        return replayability(rule, self.trace.header, has_final_hidden_state=final, has_target=target)


def _rope(shared: SharedWeights, draft: Eagle3Draft) -> RopeConfig | None:
    """As the draft's attention would read the target's settings; None if it could not."""
    config = Path(shared.config.path) / "config.json"
    if not shared.config.path or not config.is_file():
        return None
    try:
        outer = JsonFields.read(config)
        return RopeConfig.from_json(outer.object("text_config") or outer, draft.config.attention.rope.dim)
    except Eagle3RefError:  # a rope that only targets have
        return None

"""Open prompts side by side: what is committed, and one round of them, which is one forward of the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3ref.decode.chooser import Chooser
from eagle3ref.decode.drafter import Drafter
from eagle3ref.decode.trajectory import Trajectory
from eagle3ref.target import Target
from eagle3ref.target.base import device_of
from eagle3ref.target.prefill import prefill_states


class Session:
    """Prompts that are decoded together. The caches hold every committed token but the root.

    Args:
        target: as in ``decode``.
        drafter: None decodes one token a round.
        chooser: of the tokens.
        trajectories: those that are not finished, at least one; tokens that they have already are kept.
        streams: of each prompt by its place, which random stream it draws from.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        chooser: Chooser,
        trajectories: Sequence[Trajectory],
        streams: Sequence[int],
    ) -> None:
        self._target, self._drafter, self._chooser = target, drafter, chooser
        self.open = list(trajectories)
        self._streams = [streams[one.place] for one in trajectories]
        self._device = device_of(target)
        self._cache = target.new_cache(len(self.open))

    def begin(self) -> list[list[int]]:
        """All prompts through the target; commits and returns the first token of each that has none yet."""
        known = [torch.tensor(one.tokens[: one.root] if one.num_new else one.tokens) for one in self.open]
        points = () if self._drafter is None else self._drafter.capture_points
        states = prefill_states(self._target, known, self._cache, capture_points=points)
        fresh = [i for i, one in enumerate(self.open) if not one.num_new]
        new: list[list[int]] = [[] for _ in self.open]
        if fresh:
            tokens = self._next_tokens(states.last[fresh], fresh)
            for i, token in zip(fresh, tokens, strict=True):
                new[i] = [token]
                self.open[i].commit(new[i])
        if self._drafter is not None:
            self._drafter.begin(states.aux, [one.tokens for one in self.open])
        return new

    def round(self) -> list[list[int]]:
        """Draft, verify, commit; returns the new tokens of each open prompt."""
        new = self._plain_round() if self._drafter is None else self._drafted_round(self._drafter)
        for one, tokens in zip(self.open, new, strict=True):
            one.commit(tokens)
        return new

    def leave(self, finished: Sequence[bool]) -> None:
        """Close these of the open prompts: later rounds are without them."""
        stay = [i for i, done in enumerate(finished) if not done]
        if len(stay) == len(finished):
            return
        self.open, self._streams = [self.open[i] for i in stay], [self._streams[i] for i in stay]
        if stay:
            self._cache.select(self._tensor(stay))
            if self._drafter is not None:
                self._drafter.select(self._tensor(stay))

    def _plain_round(self) -> list[list[int]]:
        tokens = self._tensor([one.tokens[-1:] for one in self.open])
        output = self._target.forward(tokens, cache=self._cache)
        self._cache.keep(torch.zeros_like(tokens), torch.ones_like(tokens[:, 0]))
        return [[token] for token in self._next_tokens(output.final_hidden_state[:, 0], range(len(self.open)))]

    def _drafted_round(self, drafter: Drafter) -> list[list[int]]:
        root_tokens, indices = self._tensor([one.tokens[-1] for one in self.open]), self._indices(self.open) - 1
        roots = self._tensor([one.root for one in self.open])
        tree, draft_probs = drafter.propose(roots, root_tokens, self._streams, indices)
        output = self._target.forward(
            tree.tokens,
            cache=self._cache,
            positions=tree.positions,
            mask=tree.tree_mask,
            capture_points=drafter.capture_points,
        )
        verified = self._chooser.verify(tree, output.final_hidden_state, draft_probs, self._streams, indices)
        counts = verified.num_accepted + 1  # with the root
        nodes = torch.nn.functional.pad(verified.accepted_nodes.clamp(min=0), (1, 0))[:, : int(counts.max())]
        self._cache.keep(nodes, counts)
        new = [
            [*tokens[: count - 1], bonus]
            for tokens, count, bonus in zip(
                verified.accepted_tokens.tolist(), counts.tolist(), verified.bonus_token.tolist(), strict=True
            )
        ]
        sequence = torch.arange(len(nodes), device=nodes.device)[:, None]
        states = [output.aux_hidden_states[point][sequence, nodes] for point in drafter.capture_points]
        drafter.extend(torch.cat(states, -1), new)
        return new

    def _next_tokens(self, states: Tensor, rows: Sequence[int]) -> list[int]:
        some = [self.open[i] for i in rows]
        positions = torch.tensor([one.root for one in some])
        streams = [self._streams[i] for i in rows]
        tokens: list[int] = self._chooser.next_tokens(states, streams, self._indices(some), positions).tolist()
        return tokens

    def _indices(self, some: Sequence[Trajectory]) -> Tensor:
        return torch.tensor([one.num_new for one in some])

    def _tensor(self, numbers: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return torch.tensor(numbers, device=self._device)

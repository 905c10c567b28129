"""A draft with a sliding window: live decoding and replay, on the nano pair."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import eagle3ref as e3

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")


def test_replay_and_live_decoding_agree_on_a_window(tmp_path):
    """Bug: a window that only one of the two applies, or that a committed row, a block or a tree row falls out of."""
    target = e3.load_target(e3.nano.target_path(), dtype=torch.float32)
    draft = e3.load_draft(e3.nano.draft_path(), target=target, dtype=torch.float32)
    prompt = e3.read_prompts(e3.nano.prompts_path(), e3.nano.target_path())[0][2]
    trace = e3.capture(target, [prompt], tmp_path / "t", capture_points=draft.capture_points, max_new_tokens=32)
    tree, rounds = e3.TreeConfig(4, 3, 12), {}
    for window in (None, 1, 4, 10_000):
        windowed = draft.rewired(replace(draft.config, layer_windows=(window,)))
        live = e3.decode(target, windowed, prompt.tokens, tree, max_new_tokens=32)
        (replayed,) = e3.replay_rounds(trace, windowed, tree)
        rounds[window] = list(live.num_accepted)
        # The last round of the replay is cut where the record ends.
        assert replayed.num_accepted.tolist()[:-1] == rounds[window][:-1]
    assert rounds[None] == rounds[10_000]
    assert len({tuple(accepted) for accepted in rounds.values()}) == 3

"""The EAGLE-3 draft head: fuse the target's aux hidden states, one decoder layer (or a few), norm, head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eagle3ref.config import DraftConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import GatedMLP, RMSNorm, Rows, SharedRows, make_attention


class DraftOutput(NamedTuple):
    """What one draft forward leaves behind.

    Args:
        state: [B, P, Q, C], the recurrent state, input of the next step in place of the fused target states.
        normed: [B, P, Q, C], what the head reads, after the final norm if there is one; ``draft.logits`` makes logits.
        rows: per layer, the groups' own rows with the new ones appended.
    """

    state: Tensor
    normed: Tensor
    rows: list[Rows]


class DraftLayer(nn.Module):
    """A decoder layer; the first one attends over [norm(embedding); norm(state)], embedding first.

    Its residual is the state *before* ``hidden_norm`` (EAGLE-3, arXiv 2503.01840, §3.1, and its code), or after it with
    ``norm_before_residual``. With ``hidden_double_norm`` the attended state passes ``input_layernorm`` first.
    """

    def __init__(self, config: DraftConfig, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual, self.hidden_double_norm = config.norm_before_residual, config.hidden_double_norm
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps) if index == 0 else None
        self.self_attn = make_attention(2 * size if index == 0 else size, size, config.layer_attention(index), eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = GatedMLP(size, config.intermediate_size, bias=config.mlp_bias)

    def forward(
        self,
        state: Tensor,
        embedded: Tensor,
        positions: Tensor,
        *,
        mask: Tensor,
        own: Rows | None,
        prefix: SharedRows | None,
    ) -> tuple[Tensor, Rows]:
        """state and embedded [B, P, Q, C] -> the residual stream after the layer, and its rows."""
        residual, x = self.attention_input(state, embedded)
        attended, rows = self.self_attn(x, positions, mask=mask, own=own, prefix=prefix)
        return self.after_attention(residual, attended), rows

    def attention_input(self, state: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """state and embedded [..., C] -> the residual [..., C], and what attention reads [..., C or 2C]."""
        if self.hidden_norm is None:
            return state, self.input_layernorm(state)
        normed = self.hidden_norm(self.input_layernorm(state) if self.hidden_double_norm else state)
        residual = normed if self.norm_before_residual else state
        return residual, torch.cat((self.input_layernorm(embedded), normed), -1)

    def after_attention(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The residual stream after the layer, [..., C]."""
        stream: Tensor = residual + attended
        after: Tensor = stream + self.mlp(self.post_attention_layernorm(stream))
        return after


class Eagle3Draft(nn.Module):
    """An EAGLE-3 draft with GQA or MLA attention.

    Args:
        config: its settings.
        num_layers: decoder layers.
        capture_points: the residual streams of the target that ``fuse`` takes, in this order.
        target_ids: int64 [Vd], the target token of each draft token.

    Attributes:
        origins: who wrote the file, where ``capture points``, ``embedding`` and ``lm_head`` came from, and what was
            chosen where the file leaves a choice; one sentence each.
        warnings: what is odd about the checkpoint. ``load_draft`` fills both.
    """

    target_ids: Tensor

    def __init__(
        self, config: DraftConfig, num_layers: int, capture_points: tuple[int, ...], target_ids: Tensor
    ) -> None:
        super().__init__()
        self.config, self.capture_points = config, capture_points
        self.origins: dict[str, str] = {}
        self.warnings: list[str] = []
        fused = config.num_aux_hidden_states * config.target_hidden_size
        if config.norm_before_fc:
            self.input_norm = RMSNorm(fused, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_aux_hidden_states)
            )
        self.fc = nn.Linear(fused, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList(DraftLayer(config, i) for i in range(num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Embedding would draw the same, but on the meta device import torch._dynamo for that: a second, for nothing.
        table = config.vocab_size, config.hidden_size
        self.embed_tokens = nn.Embedding(*table, _weight=torch.randn(table))
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("target_ids", target_ids, persistent=False)

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """The first recurrent state: ``fc`` over the concatenated aux hidden states.

        Args:
            aux_hidden_states: [..., A * Ct], in the order of ``capture_points``.

        Returns:
            [..., C].

        Raises:
            Eagle3RefError: another width. Engines compare widths and skip ``fc`` when they match the embedding's;
                here a wrong width is never a bypass.
        """
        width, wanted = aux_hidden_states.shape[-1], self.fc.in_features
        if width != wanted:
            raise self._wrong_width(width, wanted)
        x = aux_hidden_states.to(self.fc.weight.dtype)
        if self.config.norm_before_fc:
            x = self.input_norm(x)
        if self.config.fc_norm:
            chunks = x.chunk(self.config.num_aux_hidden_states, -1)
            x = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], -1)
        fused: Tensor = self.fc(x)
        return fused

    def forward(
        self,
        state: Tensor,
        tokens: Tensor,
        positions: Tensor,
        *,
        mask: Tensor,
        own: list[Rows] | None = None,
        prefix: Sequence[SharedRows] | None = None,
    ) -> DraftOutput:
        """One draft step for Q rows of P groups of B sequences.

        Args:
            state: [B, P, Q, C], fused target states at ``positions``, or the recurrent state of the row before.
            tokens: int64 [B, P, Q], target ids of the tokens *after* ``positions``.
            positions: int64 [B, P, Q].
            mask: bool, broadcastable to [B, P, Q, K], over the groups' own rows, the Q new ones last.
            own: per layer, the groups' earlier own rows.
            prefix: per layer, the rows that the groups of a sequence share.
        """
        embedded = self.embed_tokens(tokens).to(state.dtype)
        rows = []
        for i, layer in enumerate(self.layers):
            state, layer_rows = layer(
                state,
                embedded,
                positions,
                mask=mask,
                own=None if own is None else own[i],
                prefix=None if prefix is None else prefix[i],
            )
            rows.append(layer_rows)
        return DraftOutput(*self.read_out(state), rows)

    def read_out(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The stream after the last layer [..., C] -> the recurrent state, and what the head reads."""
        normed = stream if self.config.final_norm == "none" else self.norm(stream)
        return (normed if self.config.norm_output else stream), normed

    def logits(self, normed: Tensor) -> Tensor:
        """[..., C] as ``DraftOutput.normed`` -> [..., Vd], over the draft vocabulary."""
        logits: Tensor = self.lm_head(normed)
        return logits if self.config.logit_scale == 1 else logits * self.config.logit_scale

    def rewired(self, config: DraftConfig, capture_points: tuple[int, ...] | None = None) -> Eagle3Draft:
        """The same tensors as another network: what an engine runs that ignores or adds a setting.

        Tensors that ``config`` has no place for are left out; nothing is copied.

        Args:
            config: of the other network, made with ``dataclasses.replace``.
            capture_points: the streams it is given; this draft's when None.

        Raises:
            Eagle3RefError: a tensor that the other network needs is missing or has another shape.
        """
        points = self.capture_points if capture_points is None else capture_points
        with torch.device("meta"):
            other = Eagle3Draft(config, len(self.layers), points, self.target_ids)
        mine, wanted = self.state_dict(), other.state_dict()
        unfit = [name for name, value in wanted.items() if name not in mine or mine[name].shape != value.shape]
        if unfit:
            raise Eagle3RefError(
                "running a draft as another network",
                found=f"{unfit[0]} missing or of another shape, and {len(unfit) - 1} more",
                expected="settings that this draft has the tensors for",
                action="Only leave settings out, or change those that have no tensors.",
            )
        other.load_state_dict({name: mine[name] for name in wanted}, assign=True)
        other.target_ids = self.target_ids
        other.origins, other.warnings = dict(self.origins), list(self.warnings)
        return other.requires_grad_(False).train(self.training)

    def _wrong_width(self, width: int, wanted: int) -> Eagle3RefError:
        single = self.config.target_hidden_size
        hint = (
            f"{width} is a single state: on SGLang this happens with --speculative-algorithm EAGLE instead of EAGLE3, "
            "and there the draft silently skips fc. Record the aux hidden states."
            if width == single
            else "Record the capture points that the draft was trained on."
        )
        return Eagle3RefError(
            "fusing aux hidden states",
            found=f"states {width} wide",
            expected=f"{wanted} wide: fc takes {self.config.num_aux_hidden_states} capture points x {single}",
            action=hint,
        )

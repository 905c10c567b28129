"""What one engine does with an EAGLE-3 draft over one stretch of its history, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, AttentionKind
from eagle3ref.config.tree import TreeKV
from eagle3ref.engines.formulas import Formula

IdRule = Literal["as_is", "plus_one", "plus_one_if_first_is_1", "plus_one_unless_last_is_n", "plus_one_default_too"]
UnknownTensors = Literal["dropped", "warned", "refused"]

# What an id becomes: point k is the residual stream that enters layer k of n.
ID_RULE_MEANING: Mapping[IdRule, str] = {
    "as_is": "k",
    "plus_one": "k + 1",
    "plus_one_if_first_is_1": "k + 1 if the first id is 1, else k",
    "plus_one_unless_last_is_n": "k if the largest id is the number of layers, else k + 1",
    "plus_one_default_too": "k + 1, and the default is shifted as well",
}


@dataclass(frozen=True)
class Source:
    """Where a fact stands.

    Args:
        where: a release and the file in it, or a pull request.
        date: ISO date of that release or pull request; of the reading, if what was read has no date.
    """

    where: str
    date: str

    @property
    def is_established(self) -> bool:
        """Whether anything was found."""
        return not self.where.startswith("not established")


Fact = tuple[Any, Source]  # a value of a field, and who says so


@dataclass(frozen=True)
class EngineProfile:
    """How one engine, over a stretch of its history, reads a draft, runs it, and counts what was accepted.

    A field that is None or empty was not established, or is nothing that the engine has; its source says which. S, K
    and N are ``num_steps``, ``topk`` and ``num_draft_tokens``; n is the number of the target's layers. Mappings by
    target use ``model_type``, and ``"*"`` for all that are not named.

    Args:
        engine: its name, e.g. ``"SGLang"``.
        package: its name on PyPI, e.g. ``"sglang"``.
        versions: the releases, a PEP 440 specifier, e.g. ``">=0.5.22,<0.5.24"``; "" if they were not told apart.
        version: the newest of them: the one whose source was read. Within the range only targets may have been added.
        since: ISO date of the first of them.

        capture_setting: what makes the target hand over its aux states, as a user writes it.
        without_capture: what becomes of an EAGLE-3 draft when that setting is another one.
        capture_keys: where config.json may hold the layer ids, dotted, in the order of reading; no other key is read.
        id_rules: how an id becomes a capture point, by target. A target that is not named cannot be captured from, or
            its class was not read; the newest profile of an engine names the most.
        last_point_targets: the targets where point n, the output of the last layer, is captured.
        point_outside: what happens with a point that no layer has, by target.

        architectures: ``architectures[0]`` of the drafts that it loads, by the draft's attention.
        embedding: whose embedding the draft uses, in words.
        embedding_of: whose is used if the draft has one of the target's width.
        lm_head: whose head the draft uses, in words.
        missing_lm_head: what happens when ``draft_vocab_size`` is given and there is no such tensor, in words.
        missing_lm_head_is: what then serves as the head; ``"random"`` is what lies in memory.
        honoured_keys: config keys that change the draft's forward, by the draft's attention.
        ignored_keys: config keys that other engines honour and this one does not, by the draft's attention.
        unknown_tensors: what becomes of a tensor with another name, by the draft's attention.
        max_draft_layers: layers that a draft may have, by the draft's attention; None is any number.
        fc_skipped_on_equal_width: whether ``fc`` is left out in silence when the states are as wide as the embedding.
        short_rope: what happens when the draft's ``max_position_embeddings`` is smaller than the target's context.

        trees: whether K > 1 exists.
        tree_kv: which rows a branch of a tree reads.
        default_trees: (S, K, N) when the user gives none, by target architecture.
        forces_chain_width: whether a chain runs with N = S + 1, whatever N was asked for.
        topk_refused_by: attention backends that refuse K > 1.
        paged_topk_backends: the backends that take K > 1 with pages larger than 1.

        sampled_rule: the acceptance rule at temperature > 0 (at 0 it is ``greedy`` everywhere).
        sampled_options: the rules that a setting, as a user writes it, puts in its place.
        sampled_needs: what these settings require.

        log_format: the figures in the log line, over ``accept_length`` and ``accept_rate``.
        accept_length: the length in the log, in tokens per round.
        accept_rate: the rate in the log.
        accept_rate_meaning: what that rate divides by what.
        log_interval: how often the line comes; its figures are over the rounds since the last one.
        cuts_last_round_in_log: whether the log leaves out accepted tokens past the end of an answer.
        cuts_last_round_in_request: whether the request's length does.
        prefill_in_request_length: whether the token of the prefill is in the numerator of the request's length.
        request_fields: names of a request's figures, by meaning.
        metrics: names of the Prometheus metrics, by meaning.
        flags: names in the launch command, by meaning.
        remarks: what the fields above cannot say.
        sources: where each field above stands.
    """

    engine: str
    package: str
    versions: str
    version: str
    since: str

    capture_setting: str | None
    without_capture: str | None
    capture_keys: tuple[str, ...]
    id_rules: Mapping[str, IdRule]
    last_point_targets: tuple[str, ...]
    point_outside: Mapping[str, str]

    architectures: Mapping[AttentionKind, tuple[str, ...]]
    embedding: str | None
    embedding_of: Literal["target", "draft"] | None
    lm_head: str | None
    missing_lm_head: str | None
    missing_lm_head_is: Literal["target", "random", "refused"] | None
    honoured_keys: Mapping[AttentionKind, tuple[str, ...]]
    ignored_keys: Mapping[AttentionKind, tuple[str, ...]]
    unknown_tensors: Mapping[AttentionKind, UnknownTensors]
    max_draft_layers: Mapping[AttentionKind, int | None]
    fc_skipped_on_equal_width: bool | None
    short_rope: str | None

    trees: bool | None
    tree_kv: TreeKV | None
    default_trees: Mapping[str, tuple[int, int, int]]
    forces_chain_width: bool | None
    topk_refused_by: tuple[str, ...]
    paged_topk_backends: tuple[str, ...] | None

    sampled_rule: AcceptanceRule | None
    sampled_options: Mapping[str, AcceptanceRule]
    sampled_needs: str | None

    log_format: str | None
    accept_length: Formula | None
    accept_rate: Formula | None
    accept_rate_meaning: str | None
    log_interval: str | None
    cuts_last_round_in_log: bool | None
    cuts_last_round_in_request: bool | None
    prefill_in_request_length: bool | None
    request_fields: Mapping[str, str]
    metrics: Mapping[str, str]
    flags: Mapping[str, str]
    remarks: tuple[str, ...]
    sources: Mapping[str, Source]

    @classmethod
    def stated(cls, **facts: Fact) -> EngineProfile:
        """A profile from one (value, source) for every field but ``sources``."""
        return cls(**_values(facts), sources=_sources(facts))

    def changed(self, **facts: Fact) -> EngineProfile:
        """The next stretch of the engine's history: this one, with these (value, source) put in place."""
        return replace(self, **_values(facts), sources={**self.sources, **_sources(facts)})

    @property
    def name(self) -> str:
        """As ``engine_profile`` takes it, e.g. ``"sglang==0.5.23"``."""
        return f"{self.package}=={self.version}" if self.versions else self.package

    @property
    def ids_key(self) -> str | None:
        """Where this engine takes layer ids: a key of config.json, or else an option of the launch; None if nowhere."""
        return next(iter(self.capture_keys), self.flags.get("capture_ids"))

    def figures(self, counts: AcceptanceCounts) -> dict[str, float]:
        """``accept_length`` and ``accept_rate`` of the log line for these counts, those of the two that it has.

        Raises:
            Eagle3RefError: no complete round.
        """
        formulas = {"accept_length": self.accept_length, "accept_rate": self.accept_rate}
        return {name: formula(counts) for name, formula in formulas.items() if formula is not None}

    def log_line(self, counts: AcceptanceCounts) -> str:
        """The figures as the engine logs them, in its words and decimals; "" if it logs none.

        Raises:
            Eagle3RefError: no complete round.
        """
        return "" if self.log_format is None else self.log_format.format(**self.figures(counts))


def facts(source: Source, **values: Any) -> dict[str, Fact]:
    """Several facts that stand in one place."""
    return {name: (value, source) for name, value in values.items()}


def fact_names() -> tuple[str, ...]:
    """The fields that have a source: all but ``sources``."""
    return tuple(field.name for field in fields(EngineProfile) if field.name != "sources")


def _values(facts: Mapping[str, Fact]) -> dict[str, Any]:
    return {name: value for name, (value, _) in facts.items()}


def _sources(facts: Mapping[str, Fact]) -> dict[str, Source]:
    return {name: source for name, (_, source) in facts.items()}

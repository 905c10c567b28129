"""What an engine will really run with these files and flags."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

from eagle3ref.config import AcceptanceRule, DraftConfig
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.engines import CapturedPoints, EngineProfile, captured_points, ids_that_capture
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.case import Case
from eagle3ref.explain.engine_config import config_as_read
from eagle3ref.explain.loading import LoadedTensors, loaded_tensors
from eagle3ref.explain.tree_settings import TreeSettings, resolve_tree
from eagle3ref.target import shared_weights

HeadSupplier = Literal["draft", "target", "embedding", "random", "refused"]
_VLLM_METHODS = {"eagle-": "eagle", "eagle3": "eagle3"}  # in this order
_MOST_BYTES_READ = 2**26  # of an embedding, to compare it with the target's: a look at files stays a look


@dataclass(frozen=True)
class Wiring:
    """One engine with one draft, one target and one set of flags.

    Args:
        case: the files, the engine and the flags.
        algorithm: of the flags, or guessed by the engine, or the right one.
        is_eagle3: that algorithm is EAGLE-3.
        captures: the target hands over its aux states.
        tree: the tree that runs.
        captured: the residual streams that the draft gets, if ``captures``; or how the engine fails.
        trained: the residual streams that the draft was trained on; None if nobody can tell.
        trained_how: how that is known, or why not.
        ids_for_trained: what config.json must say so that this engine captures ``trained``; None if nothing does.
        config: the draft's config as the engine reads it.
        ignored_keys: keys whose value it does not use.
        tensors: what becomes of the tensors.
        embedding: whose is used.
        same_embedding: whether the draft's equals the target's; None if one is missing or they are too large to read.
        lm_head: whose is used; ``random`` is what lies in memory.
        rule: at temperature > 0; None if it is not established.
    """

    case: Case
    algorithm: str
    is_eagle3: bool
    captures: bool
    tree: TreeSettings
    captured: CapturedPoints
    trained: tuple[int, ...] | None
    trained_how: str
    ids_for_trained: tuple[int, ...] | None
    config: DraftConfig
    ignored_keys: tuple[str, ...]
    tensors: LoadedTensors
    embedding: Literal["draft", "target"]
    same_embedding: bool | None
    lm_head: HeadSupplier
    rule: AcceptanceRule | None


def resolve_wiring(case: Case) -> Wiring:
    """Work out what the engine does, field by field.

    Raises:
        Eagle3RefError: the draft belongs to another target.
    """
    profile, draft, target = case.profile, case.draft, case.target
    draft.config.check_target(target.hidden_size, target.vocab_size, f"explaining {draft.folder} for {target.name}")
    trained, trained_how = _trained(case)
    config, ignored = config_as_read(draft, profile)
    return Wiring(
        case=case,
        algorithm=_algorithm(case),
        is_eagle3=_is_eagle3(case),
        captures=_is_eagle3(case) and not (profile.engine == "SGLang" and draft.config.capture_is_off),
        tree=resolve_tree(profile, case.flags, case.target.architecture),
        captured=_captured(case),
        trained=trained,
        trained_how=trained_how,
        ids_for_trained=trained and ids_that_capture(profile, trained, target.model_type, target.num_layers),
        config=config,
        ignored_keys=tuple(ignored),
        tensors=loaded_tensors(profile.engine, draft, config),
        embedding=_embedding(case),
        same_embedding=_same_embedding(case),
        lm_head=_lm_head(case),
        rule=_rule(case),
    )


def _trained(case: Case) -> tuple[tuple[int, ...] | None, str]:
    try:
        return resolve_capture_points(
            case.draft.config, case.target.num_layers, case.capture_points, str(case.draft.folder)
        )
    except Eagle3RefError as error:
        return None, f"{error.found} does not say on which layers the draft was trained"


def _captured(case: Case) -> CapturedPoints:
    draft, target = case.draft, case.target
    return captured_points(
        case.profile,
        draft.written_ids,
        target.model_type,
        target.num_layers,
        draft.config.num_aux_hidden_states,
    )


def _right_algorithm(profile: EngineProfile) -> str:
    return "eagle3" if profile.engine == "vLLM" else "EAGLE3"


def _algorithm(case: Case) -> str:
    """As typed; or what vLLM makes of the draft's path (0.32.0, config/speculative.py); or the right one."""
    flags = case.flags
    if flags.algorithm is None and case.profile.engine == "vLLM" and flags.draft_path is not None:
        path = flags.draft_path.lower()
        return next((method for mark, method in _VLLM_METHODS.items() if mark in path), "draft_model")
    return flags.algorithm or _right_algorithm(case.profile)


def _is_eagle3(case: Case) -> bool:
    """Whether the algorithm is EAGLE-3; SGLang takes it in either case."""
    algorithm = _algorithm(case)
    return (algorithm.upper() if case.profile.engine == "SGLang" else algorithm) == _right_algorithm(case.profile)


def _embedding(case: Case) -> Literal["draft", "target"]:
    config, has_own = case.draft.config, case.draft.ending("embed_tokens.weight") is not None
    if not has_own:
        return "target"
    is_replaced = case.profile.embedding_of == "target" and config.hidden_size == config.target_hidden_size
    return "target" if is_replaced else "draft"


def _same_embedding(case: Case) -> bool | None:
    name = case.draft.ending("embed_tokens.weight")
    if name is None or math.prod(case.draft.shapes[name]) * 2 > _MOST_BYTES_READ:
        return None
    try:
        return shared_weights(case.target.path).has_embedding(case.draft.weights.read(name))
    except Eagle3RefError:  # a target of which only config.json is here
        return None


def _lm_head(case: Case) -> HeadSupplier:
    draft, profile = case.draft, case.profile
    if profile.engine == "SGLang":
        if not _is_eagle3(case):  # EAGLE-1's path, eagle_worker_v2.py, init_lm_head
            return "target"
        # Neither is read from the file: models/llama_eagle3.py, LlamaForCausalLMEagle3.
        if draft.config.tie_word_embeddings:
            return "embedding"
        if draft.config.shares_target_lm_head:
            return "target"
    if draft.ending("lm_head.weight") is not None:
        return "draft"
    return profile.missing_lm_head_is or "refused"


def _rule(case: Case) -> AcceptanceRule | None:
    """The engine's rule at temperature > 0; each setting changes that in which its own rule differs, and no more."""
    flags, default = case.flags, case.profile.sampled_rule
    if default is None:
        return None
    fields = asdict(default)
    for setting in case.sampled_options:
        other = asdict(case.profile.sampled_options[setting])
        fields |= {name: value for name, value in other.items() if value != getattr(default, name)}
    rule = AcceptanceRule(**fields)
    if rule.name != "target_only":
        return rule
    return replace(
        rule,
        threshold_single=1.0 if flags.threshold_single is None else flags.threshold_single,
        threshold_acc=1.0 if flags.threshold_acc is None else flags.threshold_acc,
    )

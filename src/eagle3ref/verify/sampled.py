"""One entry to the sampling rules."""

from __future__ import annotations

from torch import Tensor

from eagle3ref.config import AcceptanceRule
from eagle3ref.errors import Eagle3RefError
from eagle3ref.tree import DraftTree
from eagle3ref.verify.block import verify_block
from eagle3ref.verify.multi_round import verify_multi_round
from eagle3ref.verify.rejection import verify_rejection
from eagle3ref.verify.target_only import TARGET_ONLY, verify_target_only
from eagle3ref.verify.walk import Verification


def verify_sampled(
    tree: DraftTree,
    target_probs: Tensor,
    uniforms: Tensor,
    final_uniforms: Tensor,
    *,
    rule: AcceptanceRule = TARGET_ONLY,
    draft_probs: Tensor | None = None,
) -> Verification:
    """Verify drafts at a temperature > 0 by any rule.

    Every rule is given the same random numbers, one a node and one for the bonus, and says which it uses for what.

    Args:
        tree: N nodes for each of B sequences; a chain for ``rejection`` and ``block``.
        target_probs: [B, N, V], the target's distribution after each node, as ``sampling.target_probs`` makes them.
        uniforms: [B, N], 0 <= u < 1.
        final_uniforms: [B].
        rule: which; ``greedy`` has no random numbers and is ``verify_greedy``.
        draft_probs: [B, N-1, V] over the target vocabulary, for a rule with ``drafts="sampled"``, and only then.

    Raises:
        Eagle3RefError: the rule ``greedy``, draft_probs that the rule does not want or that are missing, and as the
            rules' own functions.
    """
    if rule.name == "greedy":
        raise _refusal("the rule greedy", "a rule that samples", "Use verify_greedy on the argmax of the logits.")
    if (draft_probs is not None) != (rule.drafts == "sampled"):
        given = "no draft_probs" if draft_probs is None else "draft_probs"
        wanted = "draft_probs if the drafts were sampled, none if they are the draft's first choice"
        raise _refusal(f"{given} with {rule.drafts} drafts", wanted, "Set the rule's `drafts` to how they were chosen.")
    if rule.name == "target_only":
        return verify_target_only(tree, target_probs, uniforms, final_uniforms, rule=rule)
    if rule.name == "multi_round":
        return verify_multi_round(tree, target_probs, uniforms, final_uniforms)
    chain = verify_rejection if rule.name == "rejection" else verify_block
    return chain(tree, target_probs, uniforms, final_uniforms, draft_probs=draft_probs)


def _refusal(found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError("verifying a draft tree by sampling", found=found, expected=expected, action=action)

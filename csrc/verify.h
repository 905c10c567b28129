// Verification of the tree of one sequence. Twins of src/eagle3ref/verify/greedy.py and target_only.py.
//
// A parent precedes its children, so that one pass over the nodes in ascending order walks the whole path. Every member
// of a team walks for itself and comes to the same; only the first writes.

#pragma once

#include "team.h"

namespace eagle3ref {

struct DraftNodes {
  const int64_t* tokens;   // [N]
  const int64_t* parents;  // [N], -1 for the root
  int64_t num_nodes;

  EAGLE3REF_INLINE DraftNodes of(int64_t sequence) const {
    return {tokens + sequence * num_nodes, parents + sequence * num_nodes, num_nodes};
  }
};

struct Verified {
  int64_t* num_accepted;  // [1]
  int64_t* nodes;         // [N-1], -1 behind the end
  int64_t* tokens;        // [N-1], -1 behind the end
  int64_t* bonus_token;   // [1]
  bool* refused;          // [1]

  EAGLE3REF_INLINE Verified of(int64_t sequence, int64_t num_nodes) const {
    const int64_t start = sequence * (num_nodes - 1);
    return {num_accepted + sequence, nodes + start, tokens + start, bonus_token + sequence, refused + sequence};
  }
};

// A child before its parent would be missed.
EAGLE3REF_INLINE bool parents_precede(const DraftNodes& tree) {
  bool all = tree.parents[0] == -1;
  for (int64_t node = 1; node < tree.num_nodes; ++node) all &= tree.parents[node] >= 0 && tree.parents[node] < node;
  return all;
}

// Walk while accepts(node, its parent), and write the path; the last node of it is returned.
template <class Team, class Accepts>
EAGLE3REF_INLINE int64_t walk_tree(const Team& team, const DraftNodes& tree, const Verified& out, Accepts accepts) {
  int64_t last = 0, count = 0;
  for (int64_t node = 1; node < tree.num_nodes; ++node) {
    if (tree.parents[node] != last || !accepts(node, last)) continue;
    if (team.rank() == 0) {
      out.nodes[count] = node;
      out.tokens[count] = tree.tokens[node];
    }
    last = node;
    ++count;
  }
  for (int64_t i = count + team.rank(); i < tree.num_nodes - 1; i += team.size()) out.nodes[i] = out.tokens[i] = -1;
  if (team.rank() == 0) *out.num_accepted = count;
  return last;
}

template <class Team>
EAGLE3REF_INLINE void conclude(const Team& team, const Verified& out, int64_t bonus_token, bool refused) {
  if (team.rank() != 0) return;
  *out.bonus_token = bonus_token;
  *out.refused = refused;
}

// Nothing accepted, and no token after it.
template <class Team>
EAGLE3REF_INLINE void refuse(const Team& team, const DraftNodes& tree, const Verified& out) {
  walk_tree(team, tree, out, [](int64_t, int64_t) { return false; });
  conclude(team, out, -1, true);
}

template <class Team>
EAGLE3REF_INLINE void verify_greedy(const Team& team, const DraftNodes& tree, const int64_t* target_tokens,
                                    const Verified& out) {
  if (!parents_precede(tree)) return refuse(team, tree, out);
  const int64_t last = walk_tree(team, tree, out, [&](int64_t node, int64_t parent) {
    return tree.tokens[node] == target_tokens[parent];
  });
  conclude(team, out, target_tokens[last], false);
}

template <class Prob>
struct TargetOnly {
  const Prob* probs;             // [N, V], the target's distribution after each node
  const double* uniforms;        // [N]
  const double* final_uniforms;  // [1]
  int64_t vocab_size;
  Prob threshold_single;
  Prob threshold_acc;            // no less than the smallest that SGLang divides by
  bool inclusive;

  EAGLE3REF_INLINE TargetOnly of(int64_t sequence, int64_t num_nodes) const {
    return {probs + sequence * num_nodes * vocab_size, uniforms + sequence * num_nodes, final_uniforms + sequence,
            vocab_size, threshold_single, threshold_acc, inclusive};
  }
};

EAGLE3REF_INLINE bool in_unit_interval(double uniform) { return uniform >= 0 && uniform <= 1; }

// What the reference asks of uniforms and tokens. That the probabilities are ones is asked elsewhere: it takes a pass
// over all of them.
template <class Prob>
EAGLE3REF_INLINE bool fits_target_only(const DraftNodes& tree, const TargetOnly<Prob>& target) {
  bool fits = parents_precede(tree) && in_unit_interval(*target.final_uniforms) && in_unit_interval(*target.uniforms);
  for (int64_t node = 1; node < tree.num_nodes; ++node) {
    const int64_t token = tree.tokens[node];
    fits = fits && token >= 0 && token < target.vocab_size && in_unit_interval(target.uniforms[node]);
    for (int64_t other = 1; other < node; ++other) {
      fits = fits && !(tree.parents[other] == tree.parents[node] && tree.tokens[other] == token);
    }
  }
  return fits;
}

// Sums and quotients are rounded to the dtype of the probabilities, as in the reference.
template <class Team, class Prob>
EAGLE3REF_INLINE int64_t walk_target_only(const Team& team, const DraftNodes& tree, const TargetOnly<Prob>& target,
                                          const Verified& out) {
  int64_t summed_parent = -1;
  Prob sum = 0;  // of the children of summed_parent so far
  return walk_tree(team, tree, out, [&](int64_t node, int64_t parent) {
    if (parent != summed_parent) {
      summed_parent = parent;
      sum = 0;
    }
    const Prob mass = target.probs[parent * target.vocab_size + tree.tokens[node]];
    sum += mass;
    const double coin = target.uniforms[parent], reached = sum / target.threshold_acc;
    if (target.inclusive) return coin <= reached || mass >= target.threshold_single;
    return mass > 0 && (coin < reached || mass >= target.threshold_single);
  });
}

// The tokens of the children of a node, ascending; how many.
EAGLE3REF_INLINE int64_t child_tokens(const DraftNodes& tree, int64_t parent, int64_t* sorted) {
  int64_t count = 0;
  for (int64_t node = parent + 1; node < tree.num_nodes; ++node) {
    if (tree.parents[node] != parent) continue;
    int64_t place = count++;
    for (; place > 0 && sorted[place - 1] > tree.tokens[node]; --place) sorted[place] = sorted[place - 1];
    sorted[place] = tree.tokens[node];
  }
  return count;
}

// The row [V] of masses without some tokens (ascending), from the first to the last: visit(token, mass) until it is true.
template <class Prob, class Visit>
EAGLE3REF_INLINE void visit_without(const Prob* row, int64_t size, const int64_t* removed, int64_t num_removed,
                                    Visit visit) {
  int64_t token = 0;
  for (int64_t i = 0; i <= num_removed; ++i) {
    for (const int64_t end = i < num_removed ? removed[i] : size; token < end; ++token) {
      if (visit(token, row[token])) return;
    }
    ++token;
  }
}

// Inverse CDF of what is left of a row; V - 1 if no mass is.
//
// The sums are fp64 and strictly in order, and so the reference's bit for bit.
template <class Prob>
EAGLE3REF_INLINE int64_t draw_without(const Prob* row, int64_t size, const int64_t* removed, int64_t num_removed,
                                      double uniform) {
  double total = 0, so_far = 0;
  int64_t last_positive = -1;
  visit_without(row, size, removed, num_removed, [&](int64_t token, Prob mass) {
    total += mass;
    if (mass > 0) last_positive = token;
    return false;
  });
  if (last_positive < 0) return size - 1;
  int64_t drawn = last_positive;
  visit_without(row, size, removed, num_removed, [&](int64_t token, Prob mass) {
    so_far += mass;
    const bool found = mass > 0 && so_far > uniform * total;
    if (found) drawn = token;
    return found;
  });
  return drawn;
}

// removed [N] is scratch. On a GPU the draw is one thread's work: exact comes before fast.
template <class Team, class Prob>
EAGLE3REF_INLINE void verify_target_only(const Team& team, const DraftNodes& tree, const TargetOnly<Prob>& target,
                                         bool are_probabilities, const Verified& out, int64_t* removed) {
  if (!are_probabilities || !fits_target_only(tree, target)) return refuse(team, tree, out);
  const int64_t last = walk_target_only(team, tree, target, out);
  if (team.rank() != 0) return;
  const int64_t num_removed = child_tokens(tree, last, removed);
  const Prob* row = target.probs + last * target.vocab_size;
  const int64_t bonus = draw_without(row, target.vocab_size, removed, num_removed, *target.final_uniforms);
  conclude(team, out, bonus, false);
}

}  // namespace eagle3ref

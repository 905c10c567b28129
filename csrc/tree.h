// The tree of one sequence: the root and its best candidates. Twin of build_tree in src/eagle3ref/tree.py.

#pragma once

#include <cstring>

#include "team.h"

namespace eagle3ref {

// An unsigned integer that orders as the score does; -0 and +0 are equal, as they are as scores. NaN is below all.
EAGLE3REF_INLINE uint32_t ordered_key(float score) {
  const float positive_zero = score + 0.0f;
  uint32_t bits;
  memcpy(&bits, &positive_zero, sizeof bits);
  if (score != score) return 0;
  return bits >> 31 ? ~bits : bits | (uint32_t{1} << 31);
}

EAGLE3REF_INLINE uint64_t ordered_key(double score) {
  const double positive_zero = score + 0.0;
  uint64_t bits;
  memcpy(&bits, &positive_zero, sizeof bits);
  if (score != score) return 0;
  return bits >> 63 ? ~bits : bits | (uint64_t{1} << 63);
}

template <class Score>
struct Candidates {
  const Score* scores;     // [M]
  const int64_t* tokens;   // [M]
  const int64_t* parents;  // [M], flat index, -1 for the root
  int64_t num_candidates;

  EAGLE3REF_INLINE Candidates of(int64_t sequence) const {
    const int64_t start = sequence * num_candidates;
    return {scores + start, tokens + start, parents + start, num_candidates};
  }
};

struct Tree {
  int64_t* tokens;     // [N]
  int64_t* parents;    // [N]
  int64_t* depths;     // [N]
  int64_t* positions;  // [N]
  bool* mask;          // [N, N]
  int64_t num_nodes;

  EAGLE3REF_INLINE Tree of(int64_t sequence) const {
    const int64_t start = sequence * num_nodes;
    return {tokens + start, parents + start, depths + start, positions + start, mask + start * num_nodes, num_nodes};
  }
};

template <class Team, class Key>
EAGLE3REF_INLINE int64_t count_at_least(const Team& team, const Key* keys, int64_t num_keys, Key least) {
  int32_t mine = 0;  // 32 bits, so that eight of them fit a vector
  for (int64_t i = team.rank(); i < num_keys; i += team.size()) mine += keys[i] >= least;
  return team.sum(mine);
}

// The wanted-th largest key, bit by bit from the highest: the largest number that so many keys reach.
template <class Team, class Key>
EAGLE3REF_INLINE Key lowest_kept(const Team& team, const Key* keys, int64_t num_keys, int64_t wanted) {
  Key lowest = 0;
  for (int bit = 8 * sizeof(Key) - 1; bit >= 0; --bit) {
    const Key higher = lowest | (Key{1} << bit);
    if (count_at_least(team, keys, num_keys, higher) >= wanted) lowest = higher;
  }
  return lowest;
}

// Write depths, positions and the mask of nodes whose parents precede them.
template <class Team>
EAGLE3REF_INLINE void climb(const Team& team, int64_t prefix_length, const Tree& tree) {
  for (int64_t node = team.rank(); node < tree.num_nodes; node += team.size()) {
    bool* row = tree.mask + node * tree.num_nodes;
    for (int64_t i = 0; i < tree.num_nodes; ++i) row[i] = false;
    int64_t depth = -1;
    for (int64_t ancestor = node; ancestor >= 0; ancestor = tree.parents[ancestor]) {
      row[ancestor] = true;
      ++depth;
    }
    tree.depths[node] = depth;
    tree.positions[node] = prefix_length + depth;
  }
}

// Fill the tree; true if it must be refused: a NaN among the scores, or a kept candidate without its parent.
//
// keys [M] and node_of [M] are scratch. A refused tree is filled too, with orphans under the root, and reads nothing
// out of bounds.
template <class Team, class Score, class Key>
EAGLE3REF_INLINE bool build_tree(const Team& team, const Candidates<Score>& candidates, int64_t root_token,
                                 int64_t prefix_length, const Tree& tree, Key* keys, int32_t* node_of) {
  const int64_t size = candidates.num_candidates, wanted = tree.num_nodes - 1;
  int64_t wrong = 0;
  for (int64_t i = team.rank(); i < size; i += team.size()) {
    keys[i] = ordered_key(candidates.scores[i]);
    wrong += candidates.scores[i] != candidates.scores[i];
  }  // each member reads only its own keys, here and below
  const Key lowest = lowest_kept(team, keys, size, wanted);
  const int64_t above = count_at_least(team, keys, size, static_cast<Key>(lowest + 1));
  const int64_t equals_kept = wanted - above;  // the first so many of those with the lowest key

  int64_t equals_so_far = 0, kept_so_far = 0;
  for (int64_t start = 0; start < size; start += team.size()) {
    const int64_t i = start + team.rank();
    const bool equal = i < size && keys[i] == lowest;
    const Counted equals = team.count(equal);
    const bool kept = i < size && (keys[i] > lowest || (equal && equals_so_far + equals.below < equals_kept));
    const Counted nodes = team.count(kept);
    const int64_t node = 1 + kept_so_far + nodes.below;
    if (i < size) node_of[i] = kept ? static_cast<int32_t>(node) : -1;
    if (kept) {
      const int64_t parent = candidates.parents[i];
      const bool precedes = parent >= -1 && parent < i;
      tree.tokens[node] = candidates.tokens[i];
      tree.parents[node] = precedes ? parent : -1;  // a candidate still
      wrong += !precedes;
    }
    equals_so_far += equals.all;
    kept_so_far += nodes.all;
  }
  if (team.rank() == 0) {
    tree.tokens[0] = root_token;
    tree.parents[0] = -1;
  }
  team.sync();
  for (int64_t node = 1 + team.rank(); node < tree.num_nodes; node += team.size()) {
    const int64_t parent = tree.parents[node];
    const int64_t parent_node = parent < 0 ? 0 : node_of[parent];
    tree.parents[node] = parent_node < 0 ? 0 : parent_node;
    wrong += parent_node < 0;
  }
  team.sync();
  climb(team, prefix_length, tree);
  return team.sum(wrong) > 0;
}

}  // namespace eagle3ref

// The replay walk over all positions, as integers: from root to root, in steps of accepted drafts + 1.

#pragma once

#include "team.h"

namespace eagle3ref {

// Mark the roots of one sequence that a walk from root 0 comes to. A negative count goes on by one, as 0 does.
template <class Team>
EAGLE3REF_INLINE void visit_positions(const Team& team, const int64_t* num_accepted, int64_t num_roots, bool* visited) {
  for (int64_t root = team.rank(); root < num_roots; root += team.size()) visited[root] = false;
  team.sync();
  if (team.rank() != 0) return;
  for (int64_t root = 0; root < num_roots;) {
    visited[root] = true;
    const int64_t accepted = num_accepted[root];
    if (accepted >= num_roots - root) return;
    root += accepted > 0 ? accepted + 1 : 1;
  }
}

// Sequences walked under settings.
struct Walks {
  const int16_t* ranks;    // [roots of all sequences, S, S]; at [d-1, s-1] the 1-based place of the true node of depth d
                           // among the candidates of depth <= s
  const int64_t* starts;   // [B+1], sequence b has the roots starts[b] .. starts[b+1] - 1
  int64_t num_sequences;
  int64_t max_steps;       // S
  const int64_t* num_steps;         // [Q]
  const int64_t* num_draft_tokens;  // [Q]
  int64_t num_settings;
};

// Drafts accepted at one root: a tree of num_draft_tokens nodes keeps the best num_draft_tokens - 1 candidates.
EAGLE3REF_INLINE int64_t accepted_at(const int16_t* ranks, int64_t max_steps, int64_t num_steps,
                                     int64_t num_draft_tokens) {
  int64_t accepted = 0;
  for (int64_t depth = 0; depth < num_steps; ++depth) {
    accepted += ranks[depth * max_steps + num_steps - 1] < num_draft_tokens;
  }
  return accepted;
}

// Walk one sequence under one setting. histogram [Q, B, S+1] receives the complete rounds by accepted drafts, censored
// [Q, B] those whose num_steps tokens ahead run past the end of the record.
EAGLE3REF_INLINE void tally(const Walks& walks, int64_t setting, int64_t sequence, int64_t* histogram,
                            int64_t* censored) {
  const int64_t steps = walks.num_steps[setting], size = walks.max_steps;
  const int64_t num_roots = walks.starts[sequence + 1] - walks.starts[sequence];
  const int16_t* ranks = walks.ranks + walks.starts[sequence] * size * size;
  int64_t* counts = histogram + (setting * walks.num_sequences + sequence) * (size + 1);
  for (int64_t i = 0; i <= size; ++i) counts[i] = 0;
  int64_t cut_short = 0;
  for (int64_t root = 0; root < num_roots;) {
    const int64_t accepted = accepted_at(ranks + root * size * size, size, steps, walks.num_draft_tokens[setting]);
    const bool complete = root + steps <= num_roots;
    counts[accepted] += complete;
    cut_short += !complete;
    root += accepted + 1;
  }
  censored[setting * walks.num_sequences + sequence] = cut_short;
}

}  // namespace eagle3ref

// The walk over all positions on the CPU, a thread for each sequence.

#include "../inputs.h"
#include "threads.h"

namespace eagle3ref {
namespace {

Tensor visited_positions_op(Tensor num_accepted) {
  num_accepted = checked_lanes(num_accepted);
  const int64_t lanes = num_accepted.size(0), roots = num_accepted.size(1);
  const Tensor out = empty(num_accepted, {lanes, roots}, ScalarType::Bool);
  const int64_t* accepted = read<int64_t>(num_accepted);
  bool* visited = write<bool>(out);
  in_threads(lanes, 1, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    for (int64_t i = begin; i < end; ++i) {
      visit_positions(OneThread{}, accepted + i * roots, roots, visited + i * roots);
    }
  });
  return out;
}

// The bounds of what the walks will read.
void check_bounds(const Walks& walks, int64_t num_roots) {
  bool fits = walks.starts[0] == 0 && walks.starts[walks.num_sequences] == num_roots;
  for (int64_t i = 0; i < walks.num_sequences; ++i) fits = fits && walks.starts[i] <= walks.starts[i + 1];
  for (int64_t i = 0; i < walks.num_settings; ++i) {
    fits = fits && walks.num_steps[i] >= 1 && walks.num_steps[i] <= walks.max_steps;
  }
  STD_TORCH_CHECK(fits, "eagle3ref_native: starts or num_steps out of bounds");
}

std::tuple<Tensor, Tensor> tally_settings_op(Tensor ranks, Tensor starts, Tensor num_steps, Tensor num_draft_tokens) {
  const WalkInputs in(ranks, starts, num_steps, num_draft_tokens);
  const Walks walks = in.walks();
  check_bounds(walks, in.roots);
  const Tensor histogram = empty(in.ranks, {in.settings, in.sequences, in.steps + 1}, ScalarType::Long);
  const Tensor censored = empty(in.ranks, {in.settings, in.sequences}, ScalarType::Long);
  int64_t* counts = write<int64_t>(histogram);
  int64_t* cut_short = write<int64_t>(censored);
  // All settings of a sequence in turn: its ranks stay in the cache.
  in_threads(in.sequences, 1, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    for (int64_t sequence = begin; sequence < end; ++sequence) {
      for (int64_t setting = 0; setting < in.settings; ++setting) tally(walks, setting, sequence, counts, cut_short);
    }
  });
  return {histogram, censored};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(eagle3ref_native, CPU, library) {
  library.impl("visited_positions", TORCH_BOX(&visited_positions_op));
  library.impl("tally_settings", TORCH_BOX(&tally_settings_op));
}

}  // namespace eagle3ref

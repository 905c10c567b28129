// How work is shared among threads: torch's own (at::parallel_for, which is OpenMP in torch's builds). There is one pool,
// and torch.set_num_threads rules it.

#pragma once

#include <torch/csrc/stable/ops.h>

#include "simd.h"

namespace eagle3ref {

// body(begin, end) over 0 .. count in threads, each with at least grain items, in the widest instructions there are.
template <class Body>
void in_threads(int64_t count, int64_t grain, const Body& body) {
  const bool avx2 = use_avx2();
  if (count <= grain) return run(avx2, body, 0, count);
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { run(avx2, body, begin, end); });
}

}  // namespace eagle3ref

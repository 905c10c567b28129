// What the tree operators return, allocated, and as the views that one sequence fills.

#pragma once

#include "tensors.h"
#include "tree.h"
#include "verify.h"

namespace eagle3ref {

struct TreeOutputs {
  Tensor tokens, parents, depths, positions, mask, refused;

  TreeOutputs(const Tensor& like, int64_t batch, int64_t nodes)
      : tokens(empty(like, {batch, nodes}, ScalarType::Long)),
        parents(empty(like, {batch, nodes}, ScalarType::Long)),
        depths(empty(like, {batch, nodes}, ScalarType::Long)),
        positions(empty(like, {batch, nodes}, ScalarType::Long)),
        mask(empty(like, {batch, nodes, nodes}, ScalarType::Bool)),
        refused(empty(like, {batch}, ScalarType::Bool)) {}

  Tree first() const {
    return {write<int64_t>(tokens),    write<int64_t>(parents), write<int64_t>(depths),
            write<int64_t>(positions), write<bool>(mask),       tokens.size(1)};
  }

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> all() const {
    return {tokens, parents, depths, positions, mask, refused};
  }
};

struct VerificationOutputs {
  Tensor num_accepted, nodes, tokens, bonus_token, refused;

  VerificationOutputs(const Tensor& like, int64_t batch, int64_t nodes_with_root)
      : num_accepted(empty(like, {batch}, ScalarType::Long)),
        nodes(empty(like, {batch, nodes_with_root - 1}, ScalarType::Long)),
        tokens(empty(like, {batch, nodes_with_root - 1}, ScalarType::Long)),
        bonus_token(empty(like, {batch}, ScalarType::Long)),
        refused(empty(like, {batch}, ScalarType::Bool)) {}

  Verified first() const {
    return {write<int64_t>(num_accepted), write<int64_t>(nodes), write<int64_t>(tokens), write<int64_t>(bonus_token),
            write<bool>(refused)};
  }

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> all() const {
    return {num_accepted, nodes, tokens, bonus_token, refused};
  }
};

}  // namespace eagle3ref

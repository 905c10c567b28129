// What the operators ask of their tensors. Only torch's stable ABI is used: a library built against one torch is loaded
// by the later ones too.

#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <initializer_list>
#include <tuple>
#include <vector>

namespace eagle3ref {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The tensor in rows one after the other. Python words the refusals; these are for who calls the operators himself.
inline Tensor checked(const Tensor& tensor, const char* name, ScalarType type, std::initializer_list<int64_t> shape) {
  bool fits = tensor.scalar_type() == type && tensor.dim() == static_cast<int64_t>(shape.size());
  int64_t axis = 0;
  for (const int64_t size : shape) {
    fits = fits && tensor.size(axis) == size;
    ++axis;
  }
  STD_TORCH_CHECK(fits, "eagle3ref_native: ", name, " has a wrong dtype or shape");
  const Tensor rows = torch::stable::contiguous(tensor);
  // A tensor over somebody's buffer may begin anywhere; no number here is read from between two places of its kind.
  const auto address = reinterpret_cast<uintptr_t>(rows.const_data_ptr());
  return address % rows.element_size() == 0 ? rows : torch::stable::clone(rows);
}

inline Tensor empty(const Tensor& like, std::initializer_list<int64_t> shape, ScalarType type) {
  const std::vector<int64_t> sizes(shape);
  return torch::stable::new_empty(like, {sizes.data(), sizes.size()}, type);
}

template <class T>
const T* read(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <class T>
T* write(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace eagle3ref

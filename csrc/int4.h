// Moonshot's packed INT4 (src/eagle3ref/target/int4.py): eight values a word, lowest nibble first, stored as value + 8.

#pragma once

#include "team.h"

namespace eagle3ref {

constexpr int64_t kGroupSize = 32;
constexpr int64_t kPerWord = 8;

EAGLE3REF_INLINE int8_t int4_value(int nibble) { return static_cast<int8_t>(nibble - 8); }

}  // namespace eagle3ref

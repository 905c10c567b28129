// INT4 unpacking and dequantizing on the CPU, a thread for each stretch of groups.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstring>

#include "../inputs.h"
#include "../int4.h"
#include "threads.h"

namespace eagle3ref {
namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

constexpr int64_t kOctetsPerGroup = kGroupSize / 2;
constexpr int64_t kGroupsAtLeast = 1 << 11;  // groups worth a thread

// Bytes may alias anything, so the loops below are told that they do not: else none becomes a vector's.
EAGLE3REF_INLINE void unpack(const uint8_t* __restrict octets, int8_t* __restrict values, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    values[2 * i] = int4_value(octets[i] & 15);
    values[2 * i + 1] = int4_value(octets[i] >> 4);
  }
}

Tensor unpack_int4_op(Tensor packed) {
  packed = checked_words(packed);
  const int64_t rows = packed.size(0), words = packed.size(1);
  const Tensor out = empty(packed, {rows, words * kPerWord}, ScalarType::Char);
  const uint8_t* octets = read<uint8_t>(packed);  // little-endian: the columns in order
  int8_t* values = write<int8_t>(out);
  in_threads(rows * words * 4, kGroupsAtLeast * kOctetsPerGroup,
             [=](int64_t begin, int64_t end) __attribute__((always_inline)) { unpack(octets, values, begin, end); });
  return out;
}

template <class T>
EAGLE3REF_INLINE T product(int nibble, float scale) {
  return static_cast<T>(static_cast<float>(int4_value(nibble)) * scale);
}

EAGLE3REF_INLINE void dequantize_group(const uint8_t* __restrict octets, float scale, float* __restrict out) {
  for (int64_t i = 0; i < kOctetsPerGroup; ++i) {
    out[2 * i] = product<float>(octets[i] & 15, scale);
    out[2 * i + 1] = product<float>(octets[i] >> 4, scale);
  }
}

// A 16-bit float with the other sign.
template <class T>
EAGLE3REF_INLINE T negated(T value) {
  uint16_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits ^= 0x8000;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// A group holds sixteen different weights at most, and rounding knows no sign: nine are rounded to a shorter type.
template <class T>
EAGLE3REF_INLINE void dequantize_group(const uint8_t* __restrict octets, T scale, T* __restrict out) {
  T table[17];  // -8 .. 8, and 8 is no INT4
  const float wide = scale;
  table[8] = product<T>(8, wide);
  for (int value = 1; value <= 8; ++value) {
    table[8 + value] = product<T>(8 + value, wide);
    table[8 - value] = negated(table[8 + value]);
  }
  for (int64_t i = 0; i < kOctetsPerGroup; ++i) {
    out[2 * i] = table[octets[i] & 15];
    out[2 * i + 1] = table[octets[i] >> 4];
  }
}

#ifdef EAGLE3REF_AVX2
// Eight products, rounded to nearest even, in the low halves of 32-bit lanes; any NaN is the quiet one.
EAGLE3REF_TARGET_AVX2 inline __m256i rounded_to_bf16(__m256 products) {
  const __m256i bits = _mm256_castps_si256(products);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(products, products, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), is_nan);
}

// The table of a group, its eight negative and its eight other weights.
struct Table {
  __m128i negative, other;
};

EAGLE3REF_TARGET_AVX2 inline Table table_of(__m256 negative, __m256 other, BFloat16) {
  const __m256i packed = _mm256_packus_epi32(rounded_to_bf16(negative), rounded_to_bf16(other));
  const __m256i ordered = _mm256_permute4x64_epi64(packed, 0xd8);
  return {_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)};
}

EAGLE3REF_TARGET_AVX2 inline Table table_of(__m256 negative, __m256 other, Half) {
  return {_mm256_cvtps_ph(negative, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(other, _MM_FROUND_TO_NEAREST_INT)};
}

// The 32 nibbles of a group, in the order of its weights.
EAGLE3REF_TARGET_AVX2 inline __m256i nibbles_of(const uint8_t* octets) {
  const __m256i packed = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(octets)));
  return _mm256_and_si256(_mm256_or_si256(packed, _mm256_slli_epi16(packed, 4)), _mm256_set1_epi8(15));
}

EAGLE3REF_TARGET_AVX2 inline void dequantize_group_with_avx2(const uint8_t* octets, float scale, float* out) {
  const __m256i values = _mm256_sub_epi8(nibbles_of(octets), _mm256_set1_epi8(8));
  const __m128i halves[] = {_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1)};
  for (int i = 0; i < 4; ++i) {
    const __m128i eight = i % 2 ? _mm_srli_si128(halves[i / 2], 8) : halves[i / 2];
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
    _mm256_storeu_ps(out + 8 * i, _mm256_mul_ps(wide, _mm256_set1_ps(scale)));
  }
}

// In 16 bits: the low and the high bytes of the group's table are looked up, 32 nibbles at a time.
template <class T>
EAGLE3REF_TARGET_AVX2 inline void dequantize_group_with_avx2(const uint8_t* octets, T scale, T* out) {
  static_assert(sizeof(T) == 2, "the table's entries are two bytes");
  const __m128i low_byte = _mm_set1_epi16(0x00ff);
  const __m256 negative = _mm256_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1), other = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 wide = _mm256_set1_ps(static_cast<float>(scale));
  const Table table = table_of(_mm256_mul_ps(negative, wide), _mm256_mul_ps(other, wide), T{});
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_packus_epi16(_mm_and_si128(table.negative, low_byte), _mm_and_si128(table.other, low_byte)));
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_packus_epi16(_mm_srli_epi16(table.negative, 8), _mm_srli_epi16(table.other, 8)));
  const __m256i nibbles = nibbles_of(octets);
  const __m256i lows = _mm256_shuffle_epi8(low, nibbles), highs = _mm256_shuffle_epi8(high, nibbles);
  // Each 128-bit lane holds 16 of the weights: the halves are 0-7 | 16-23 and 8-15 | 24-31.
  const __m256i even = _mm256_unpacklo_epi8(lows, highs), odd = _mm256_unpackhi_epi8(lows, highs);
  auto* weights = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(weights, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(weights + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

template <class T>
EAGLE3REF_TARGET_AVX2 void dequantize_with_avx2(const uint8_t* octets, const T* scales, T* out, int64_t begin,
                                                int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    dequantize_group_with_avx2(octets + i * kOctetsPerGroup, scales[i], out + i * kGroupSize);
  }
}
#endif

template <class T>
void dequantize_all(const Int4Inputs& in, const Tensor& out) {
  const uint8_t* octets = read<uint8_t>(in.packed);
  const T* scales = read<T>(in.scale);
  T* weights = write<T>(out);
#ifdef EAGLE3REF_AVX2
  const bool avx2 = use_avx2();
#endif
  in_threads(in.scale.numel(), kGroupsAtLeast, [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
#ifdef EAGLE3REF_AVX2
    if (avx2) return dequantize_with_avx2(octets, scales, weights, begin, end);
#endif
    for (int64_t group = begin; group < end; ++group) {
      dequantize_group(octets + group * kOctetsPerGroup, scales[group], weights + group * kGroupSize);
    }
  });
}

Tensor dequantize_int4_op(Tensor packed, Tensor scale) {
  const Int4Inputs in(packed, scale, kGroupSize / kPerWord);
  const Tensor out = empty(in.scale, {in.rows, in.groups * kGroupSize}, in.type);
  if (in.type == ScalarType::BFloat16) {
    dequantize_all<BFloat16>(in, out);
  } else if (in.type == ScalarType::Half) {
    dequantize_all<Half>(in, out);
  } else {
    dequantize_all<float>(in, out);
  }
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(eagle3ref_native, CPU, library) {
  library.impl("unpack_int4", TORCH_BOX(&unpack_int4_op));
  library.impl("dequantize_int4", TORCH_BOX(&dequantize_int4_op));
}

}  // namespace eagle3ref

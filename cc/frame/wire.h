// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Internal to cc/frame: byte order, alignment, shape arithmetic and UTF-8.

#ifndef TF_FUSE_CC_FRAME_WIRE_H_
#define TF_FUSE_CC_FRAME_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tf_fuse {
namespace frame {
namespace wire {

// Byte offsets in the fixed header.
inline constexpr size_t kMagicAt = 0;
inline constexpr size_t kVersionAt = 4;
inline constexpr size_t kFlagsAt = 6;
inline constexpr size_t kHeaderBytesAt = 8;
inline constexpr size_t kSlotCountAt = 12;
inline constexpr size_t kTotalBytesAt = 16;
inline constexpr size_t kReservedAt = 24;

// Byte offsets in a slot record.
inline constexpr size_t kSlotEncodingAt = 0;
inline constexpr size_t kSlotFlagsAt = 1;
inline constexpr size_t kSlotRankAt = 2;
inline constexpr size_t kSlotReservedAt = 3;
inline constexpr size_t kSlotDtypeAt = 4;
inline constexpr size_t kSlotOffsetAt = 8;
inline constexpr size_t kSlotBytesAt = 16;
inline constexpr size_t kSlotDimsAt = 24;

inline constexpr uint8_t kDeadFlag = 1;

// Little-endian on any host, at any alignment. A compiler does not always turn
// the byte loop into one move, so hosts that are little-endian copy.
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
inline constexpr bool kHostIsLittleEndian = true;
#else
inline constexpr bool kHostIsLittleEndian = false;
#endif

template <typename T>
inline T Load(const uint8_t* p) {
  if constexpr (kHostIsLittleEndian) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
  }
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{p[i]} << (8 * i);
  return static_cast<T>(value);
}

template <typename T>
inline void Store(uint8_t* p, T value) {
  if constexpr (kHostIsLittleEndian) {
    std::memcpy(p, &value, sizeof(T));
    return;
  }
  const uint64_t bits = static_cast<uint64_t>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    p[i] = static_cast<uint8_t>(bits >> (8 * i));
  }
}

// The caller makes sure that n is at most 2^64 - 64.
inline constexpr uint64_t AlignUp(uint64_t n, uint64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

// Multiplies *product by `dim`. Returns false if dim is negative or the product
// leaves int64. The rule of tensorflow::TensorShape: applied from the left, so
// {0, 2^62, 4} is a shape and {2^62, 4, 0} is not.
inline bool MultiplyDim(int64_t dim, int64_t* product) {
  return dim >= 0 && !__builtin_mul_overflow(*product, dim, product);
}

}  // namespace wire
}  // namespace frame
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_FRAME_WIRE_H_

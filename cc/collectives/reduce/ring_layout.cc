// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/ring_layout.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/common_runtime/base_collective_executor.h"

namespace tf_fuse {

std::vector<RingField> RingFields(
    int64_t elements, int64_t element_bytes,
    const std::vector<std::vector<int>>& permutations) {
  std::vector<RingField> fields;
  if (permutations.empty() || elements == 0) return fields;
  const auto subdivisions = static_cast<int64_t>(permutations.size());
  const auto members = static_cast<int64_t>(permutations[0].size());
  const int64_t step = tensorflow::CollectiveAdapter::AlignedChunkElts(
      element_bytes, elements, members * subdivisions);
  for (int64_t i = 0; i < members * subdivisions; ++i) {
    RingField field;
    field.begin = std::min(elements, i * step);
    field.end = std::min(elements, field.begin + step);
    if (field.begin == field.end) break;
    const std::vector<int>& ring = permutations[i % subdivisions];
    // The member whose rank in the ring is the chunk's number begins.
    for (int64_t k = 0; k < members; ++k) {
      field.order.push_back(ring[(i / subdivisions + k) % members]);
    }
    if (!fields.empty() && fields.back().order == field.order) {
      fields.back().end = field.end;
    } else {
      fields.push_back(std::move(field));
    }
  }
  return fields;
}

}  // namespace tf_fuse

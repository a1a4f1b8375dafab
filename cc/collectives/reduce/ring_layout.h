// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Computes in which order of ranks TensorFlow's ring (RingReducer) sums each
// element of a tensor. The sum of floats depends on the order.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_RING_LAYOUT_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_RING_LAYOUT_H_

#include <cstdint>
#include <vector>

namespace tf_fuse {

// Elements [begin, end), summed as ((x[order[0]] + x[order[1]]) + ...), where
// each addition has the later rank's value as its first operand.
struct RingField {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int> order;
};

// The fields of a tensor that are not empty, in order; neighbours of the same
// order are one.
//
// Args:
//   elements: of the tensor.
//   element_bytes: 2, 4 or 8.
//   permutations: one for each subdivision of a chunk: its ring of ranks
//     (CollImplDetails::subdiv_permutations).
std::vector<RingField> RingFields(
    int64_t elements, int64_t element_bytes,
    const std::vector<std::vector<int>>& permutations);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_RING_LAYOUT_H_

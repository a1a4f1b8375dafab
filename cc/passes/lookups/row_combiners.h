// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which operations add up rows of a lookup, which make gradients of rows from
// those of the sums, and what may lie between.
//
// All compute the same bits in every process: TensorFlow's kernels for CPUs add
// the terms of a sum in an order that does not depend on threads.

#ifndef TF_FUSE_CC_PASSES_LOOKUPS_ROW_COMBINERS_H_
#define TF_FUSE_CC_PASSES_LOOKUPS_ROW_COMBINERS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// It computes each element from one element of an input, or of each input.
bool IsByElement(const tensorflow::Node& node);

// It picks rows of its first input by a list of numbers.
bool PicksByNumber(const tensorflow::Node& node);

// It adds up rows that are its first input: by segments, or along axes that are
// constant and not the last one, which has two elements or more. `sizes` are
// those of the input's axes, -1 for one that is not known; empty: the rank is
// not known.
bool CombinesRows(const tensorflow::Node& node,
                  const std::vector<int64_t>& sizes);

// It returns the shape of its input, or how many elements or axes it has.
bool Measures(const tensorflow::Node& node);

// It makes the gradients of rows from its first input, the gradients of sums.
bool IsGradientOfSegments(const tensorflow::Node& node);

// It has at least as many elements as its first input, and repeats these.
bool Repeats(const tensorflow::Node& node);

// Its first input is the gradient of a product, and it adds up what the product
// has broadcast.
bool UndoesBroadcast(const tensorflow::Node& node);

// It computes shapes, numbers of rows or segments, or comparisons of these.
bool ComputesNumbers(const tensorflow::Node& node);

// The input that says for each row to which sum it belongs; -1: there is none.
int SegmentIdsOf(const tensorflow::Node& node);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_LOOKUPS_ROW_COMBINERS_H_

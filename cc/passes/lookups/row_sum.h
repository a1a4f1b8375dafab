// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which operations add rows up by their ids, so that it makes no difference,
// but for last bits, whether rows of equal ids were added before.

#ifndef TF_FUSE_CC_PASSES_LOOKUPS_ROW_SUM_H_
#define TF_FUSE_CC_PASSES_LOOKUPS_ROW_SUM_H_

#include <functional>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

struct RowSum {
  int ids = -1;     // The input that has them; -1: it does not add rows.
  int values = -1;  // The input that has the rows.
};

// Of ResourceScatterAdd and ResourceScatterSub, UnsortedSegmentSum, and a
// TfFuse>StagedUpdate that only adds rows to variables, perhaps negated, or
// multiplied or divided by inputs that `is_scalar` says to be scalars, and a
// TfFuse>ElementwiseUpdate that sums one input's rows.
RowSum FindRowSum(const tensorflow::Node& node,
                  const std::function<bool(int input)>& is_scalar);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_LOOKUPS_ROW_SUM_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Makes other tasks get each id of a lookup once, and a worker put the rows in
// their places and add the gradients of equal ids.

#ifndef TF_FUSE_CC_PASSES_LOOKUPS_UNIQUE_REWRITE_H_
#define TF_FUSE_CC_PASSES_LOOKUPS_UNIQUE_REWRITE_H_

#include <vector>

#include "absl/status/status.h"
#include "passes/lookups/unique_plan.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

absl::Status ApplyUniqueIds(const std::vector<UniqueIds>& plan,
                            tensorflow::Graph* graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_LOOKUPS_UNIQUE_REWRITE_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Moves operations to other devices, with the constants that they need, and
// marks them.

#ifndef TF_FUSE_CC_PASSES_LOOKUPS_COMBINE_REWRITE_H_
#define TF_FUSE_CC_PASSES_LOOKUPS_COMBINE_REWRITE_H_

#include <vector>

#include "absl/status/status.h"
#include "passes/lookups/combine_plan.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// A bool of each moved operation. All of these have kernels that neither block
// nor are asynchronous.
inline constexpr char kMovedAttr[] = "_tf_fuse_moved";

absl::Status ApplyCombiners(const std::vector<MovedOperation>& plan,
                            tensorflow::Graph* graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_LOOKUPS_COMBINE_REWRITE_H_

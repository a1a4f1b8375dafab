// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Replaces each group of operations by one TfFuse>OperationGroup.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_OPERATIONS_REWRITE_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_OPERATIONS_REWRITE_H_

#include "absl/status/status.h"
#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// Changes `partitions`, which `view` views, also after the plan of receives was
// applied to them: no receive is in a group of operations.
absl::Status ApplyOperationGroups(const PartitionView& view,
                                  const FusePlan& plan,
                                  const PartitionGraphs& partitions,
                                  v1::FuseReport* report);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_OPERATIONS_REWRITE_H_

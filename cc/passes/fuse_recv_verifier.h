// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Proves that a plan cannot deadlock, independently of how it was made.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_VERIFIER_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_VERIFIER_H_

#include "passes/fuse_recv_analysis.h"
#include "passes/partition_view.h"

namespace tf_fuse {

// Contracts all groups of `plan` over all partitions. While that closes a
// cycle, drops the first group (in the plan's order) that lies on one: its
// receives move to `plan->skipped` with the reason skip::kWouldCycle. Returns
// the number of groups dropped; 0 for every plan that groups by depth.
int DropGroupsThatCloseCycles(const PartitionView& view, FusePlan* plan);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_VERIFIER_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Proves that a plan cannot deadlock, independently of how it was made.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_DEADLOCK_CHECK_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_DEADLOCK_CHECK_H_

#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

// Drops groups of `plan` that might wait for themselves; receives of these move
// to `plan->skipped`. Returns how often it changed the plan: 0 for every plan
// that groups by depth.
//
// First those whose members lie in different loops, or are started by different
// operations there, are dropped (reason skip::kLoopFrame). Then all groups are
// contracted over all partitions, edges from one iteration to the next left
// out: the receives, or the operations, of a group become one node. While that
// closes a cycle, the first group of operations on a cycle is dropped, or else
// the first group of receives (in the plan's order; reason skip::kWouldCycle).
//
// That is enough for loops: no two iterations wait for each other, since edges
// and TensorFlow's limit of parallel iterations lead from earlier to later ones
// alone, and a group lies in one iteration. Within an iteration, a loop that
// lies in it can be taken for one node, since the view has edges from all that
// enters a loop to all that leaves it.
int DropGroupsThatCloseCycles(const PartitionView& view, FusePlan* plan);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_DEADLOCK_CHECK_H_

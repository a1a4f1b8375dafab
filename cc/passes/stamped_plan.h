// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The workers' half of fuse_recv in sessions: reads the plan from the stamps
// that the master wrote (session_stamp.h).

#ifndef TF_FUSE_CC_PASSES_STAMPED_PLAN_H_
#define TF_FUSE_CC_PASSES_STAMPED_PLAN_H_

#include "passes/fuse_recv_analysis.h"
#include "passes/partition_view.h"

namespace tf_fuse {

// Whether the master has looked at this graph.
bool HasStamps(const PartitionGraphs& partitions);

// The part of the master's plan that concerns the receives of `view`, which is
// one task's part of the graph. How receives are grouped is the master's
// choice, not that of `options`.
//
// A receive belongs to a group only if every node that uses it says so. The
// master proved its plan by the graph that it expected the partitioner to make;
// a receive that it did not expect, or whose uses it did not all expect, is
// is in none of its groups. What is fused is then a part of the groups that
// were proved, and a part of a group waits for no more than the whole.
//
// What the master did not expect is fused dynamically, as far as several such
// receives may share requests: that needs no proof.
FusePlan PlanFromStamps(const PartitionView& view,
                        const AnalysisOptions& options);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_STAMPED_PLAN_H_

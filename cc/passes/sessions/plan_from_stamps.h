// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads the plan of fuse_recv from the stamps that the master of a session
// wrote (write_stamps.h). Runs in the workers.

#ifndef TF_FUSE_CC_PASSES_SESSIONS_PLAN_FROM_STAMPS_H_
#define TF_FUSE_CC_PASSES_SESSIONS_PLAN_FROM_STAMPS_H_

#include "absl/status/status.h"
#include "passes/fuse_recv/options.h"
#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

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

// Rewrites the partitions of one task of a session by their stamps. Operations
// are grouped as in functions, but in this task alone: a group waits for
// nothing that each of its operations does not wait for.
absl::Status FuseStampedReceives(const PartitionGraphs& partitions,
                                 const AnalysisOptions& options,
                                 v1::FuseReport* report);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_SESSIONS_PLAN_FROM_STAMPS_H_

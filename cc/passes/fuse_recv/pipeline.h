// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuse_recv pass: groups the _Recv nodes of a partitioned graph and
// replaces each group by one _FuseRecv.
//
// Requires    all partitions of the graph (the process that runs a tf.function
//             has them) or, in a session, the stamps of its master
//             (write_stamps.h); and tasks that run the protocol grpc+fuse.
// Guarantees  the values and the errors of the graph; no cycle across
//             partitions; the same groups for the same graph and costs.
// Before      _Recv "a" -> x; _Recv "b" -> y
// After       _FuseRecv {a, b}: 0 -> x, 1 -> y
//             With fuse_operations also one TfFuse>OperationGroup in place of
//             small operations that wait for the same (operation_groups.h).
// Switched    by do_fuse_recv (options.h).
//
// In order: PartitionView (the graph), FindAcknowledgements and DropReceives,
// PlanFusedReceives and PlanOperationGroups (analysis),
// DropGroupsThatCloseCycles (verifier), ApplyFusePlan and ApplyOperationGroups
// (rewrite). In a session, which keeps acknowledgements, the master plans the
// receives, and the worker reads that plan (plan_from_stamps.h), groups its own
// operations and rewrites.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_PIPELINE_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_PIPELINE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "passes/fuse_recv/options.h"
#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// Analysis and verifier.
FusePlan PlanAndVerify(const PartitionView& view,
                       const AnalysisOptions& options);

// Drops from the plan what would close a cycle.
void VerifyPlan(const PartitionView& view, const AnalysisOptions& options,
                FusePlan* plan);

// Puts the groups of operations into a plan of receives, and verifies it. Only
// tasks that `runs_groups` accepts have groups.
void PlanAndVerifyOperations(
    const PartitionView& view, const AnalysisOptions& options,
    const std::function<bool(const std::string& task)>& runs_groups,
    FusePlan* plan);

// Rewrites the partitions, and reports what was done.
absl::Status ApplyPlan(const PartitionView& view, const FusePlan& plan,
                       const PartitionGraphs& partitions,
                       v1::FuseReport* report);

// Runs all steps on `partitions`.
absl::Status FuseReceives(const PartitionGraphs& partitions,
                          const AnalysisOptions& options,
                          v1::FuseReport* report);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_PIPELINE_H_

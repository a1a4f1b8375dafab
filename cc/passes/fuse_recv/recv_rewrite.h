// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rewrites the graph by a plan: the only part of the pass that changes a graph.
//
// Before:                          After:
//   _Recv "a" ──► x                  _FuseRecv {a, b} :0 ──► x
//   _Recv "b" ──► y                                   :1 ──► y
// (in every partition; _Send nodes do not change)

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_RECV_REWRITE_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_RECV_REWRITE_H_

#include <vector>

#include "absl/status/status.h"
#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// The attribute that says why a receive was left alone. A worker that gets its
// partition as a function of its own runs the pass again, sees only that
// partition, and must not count the receive twice.
extern const char kSkipReasonAttr[];

// Removes receives that FindAcknowledgements() found, and what sends to them.
// `view` must not be used afterwards. Fills `dropped` of `report`.
void DropReceives(const PartitionView& view,
                  const std::vector<const Receive*>& receives,
                  const PartitionGraphs& partitions, v1::FuseReport* report);

// Replaces each group by one _FuseRecv in its partition, with the control edges
// of all members, and marks the receives that are left. `view` must not be used
// afterwards. Fills groups and skips of `report`. Requires that the verifier
// accepted the plan. Errors leave nothing half done in a group.
absl::Status ApplyFusePlan(const PartitionView& view, const FusePlan& plan,
                           const PartitionGraphs& partitions,
                           v1::FuseReport* report);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_RECV_REWRITE_H_

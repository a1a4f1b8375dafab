// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The fuse_recv pass: groups the _Recv nodes of a partitioned graph and
// replaces each group by one _FuseRecv.
//
// Requires    all partitions of the graph (the process that runs a tf.function
//             has them) or, in a session, the stamps of its master
//             (session_stamp.h); and tasks that run the protocol grpc+fuse.
// Guarantees  the values and the errors of the graph; no cycle across
//             partitions; the same groups for the same graph and costs.
// Before      _Recv "a" -> x; _Recv "b" -> y
// After       _FuseRecv {a, b}: 0 -> x, 1 -> y
// Switched    by do_fuse_recv (fuse_options.h).
// With do_pack_sends, the senders of a group are replaced too, where they can:
// Before      u -> _Send "a"; v -> _Send "b"
// After       u, v -> _FuseSend {a, b}, which sends the frame
//
// In order: PartitionView (what there is), PlanFusedReceives and
// MarkGroupsToPack (analysis), DropGroupsThatCloseCycles (verifier),
// ApplyFusePlan (rewrite). In a session the master does the first and the third
// and PlanFusedReceives, and the worker reads the plan (stamped_plan.h).

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_PASS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_PASS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "passes/fuse_options.h"
#include "passes/fuse_recv_analysis.h"
#include "passes/partition_view.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// What the options say, and a measured call where they say nothing of it.
AnalysisOptions ChooseAnalysis(const FuseOptions& options);

// Analysis and verifier.
FusePlan PlanAndVerify(const PartitionView& view,
                       const AnalysisOptions& options);

// Rewrites the partitions of one task of a session by their stamps.
absl::Status FuseStampedReceives(const PartitionGraphs& partitions,
                                 const AnalysisOptions& options,
                                 v1::FuseReport* report);

// Runs the four steps on `partitions`.
absl::Status FuseReceives(const PartitionGraphs& partitions,
                          const AnalysisOptions& options,
                          v1::FuseReport* report);

// The reports of the functions that were last rewritten in this process, oldest
// first, at most kMaxReports.
inline constexpr size_t kMaxReports = 64;
std::vector<v1::FuseReport> RecentReports();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_PASS_H_

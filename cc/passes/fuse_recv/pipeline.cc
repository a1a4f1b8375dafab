// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/pipeline.h"

#include "passes/fuse_recv/deadlock_check.h"
#include "passes/fuse_recv/recv_analysis.h"
#include "passes/fuse_recv/recv_rewrite.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

void VerifyPlan(const PartitionView& view, const AnalysisOptions& options,
                FusePlan* plan) {
  const int changes = DropGroupsThatCloseCycles(view, plan);
  if (changes > 0 && options.grouping == Grouping::kDepth) {
    LOG(ERROR) << "tf_fuse: " << changes
               << " groups by depth would have closed a cycle, or spanned two "
                  "loops, and were left alone. The results are right; please "
                  "report this.";
  }
}

FusePlan PlanAndVerify(const PartitionView& view,
                       const AnalysisOptions& options) {
  FusePlan plan = PlanFusedReceives(view, options);
  VerifyPlan(view, options, &plan);
  return plan;
}

absl::Status FuseReceives(const PartitionGraphs& partitions,
                          const AnalysisOptions& options,
                          v1::FuseReport* report) {
  auto view = PartitionView::Build(partitions);
  if (!view.ok()) return view.status();
  const FusePlan plan = PlanAndVerify(*view, options);
  report->set_partitions(static_cast<int>(partitions.size()));
  return ApplyFusePlan(*view, plan, partitions, report);
}

}  // namespace tf_fuse

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/pipeline.h"

#include <functional>
#include <string>
#include <vector>

#include "passes/acknowledgements/acknowledgements.h"
#include "passes/fuse_recv/deadlock_check.h"
#include "passes/fuse_recv/operation_groups.h"
#include "passes/fuse_recv/operations_rewrite.h"
#include "passes/fuse_recv/recv_analysis.h"
#include "passes/fuse_recv/recv_rewrite.h"
#include "passes/view/liveness.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

void VerifyPlan(const PartitionView& view, const AnalysisOptions& options,
                FusePlan* plan) {
  const int changes = DropGroupsThatCloseCycles(view, plan);
  if (changes > 0 && options.grouping == Grouping::kDepth) {
    LOG(ERROR)
        << "tf_fuse: " << changes
        << " groups would have closed a cycle, or spanned two loops, and "
           "were left alone. The results are right; please "
           "report this.";
  }
}

FusePlan PlanAndVerify(const PartitionView& view,
                       const AnalysisOptions& options) {
  FusePlan plan = PlanFusedReceives(view, options);
  VerifyPlan(view, options, &plan);
  return plan;
}

void PlanAndVerifyOperations(
    const PartitionView& view, const AnalysisOptions& options,
    const std::function<bool(const std::string& task)>& runs_groups,
    FusePlan* plan) {
  if (view.topological_order().empty()) return;
  const Liveness liveness(view, plan->live_receives);
  plan->operation_groups =
      PlanOperationGroups(view, liveness, *plan, runs_groups);
  VerifyPlan(view, options, plan);
}

absl::Status ApplyPlan(const PartitionView& view, const FusePlan& plan,
                       const PartitionGraphs& partitions,
                       v1::FuseReport* report) {
  report->set_partitions(static_cast<int>(partitions.size()));
  const absl::Status status = ApplyFusePlan(view, plan, partitions, report);
  if (!status.ok()) return status;
  return ApplyOperationGroups(view, plan, partitions, report);
}

absl::Status FuseReceives(const PartitionGraphs& partitions,
                          const AnalysisOptions& options,
                          v1::FuseReport* report) {
  auto view = PartitionView::Build(partitions);
  if (!view.ok()) return view.status();
  const auto runs_plugin = [&options](const std::string& task) {
    return !options.task_blocker || options.task_blocker(task).empty();
  };
  std::vector<const Receive*> dropped;
  for (const Receive* receive : FindAcknowledgements(*view)) {
    if (runs_plugin(TaskOfDevice(receive->recv_device))) {
      dropped.push_back(receive);
    }
  }
  if (!dropped.empty()) {
    DropReceives(*view, dropped, partitions, report);
    view = PartitionView::Build(partitions);
    if (!view.ok()) return view.status();
  }
  FusePlan plan = PlanAndVerify(*view, options);
  if (options.fuse_operations) {
    PlanAndVerifyOperations(*view, options, runs_plugin, &plan);
    PlanJointSends(*view, &plan);
  }
  return ApplyPlan(*view, plan, partitions, report);
}

}  // namespace tf_fuse

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Groups the receives that are fused dynamically: those of one group may share
// requests.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_DYNAMIC_GROUPS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_DYNAMIC_GROUPS_H_

#include <functional>
#include <string>
#include <vector>

#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

struct DynamicReceive {
  const Receive* receive = nullptr;
  bool may_be_dead = true;
  // The reason to leave it alone if no other may share its requests.
  std::string if_alone;
};

// Adds one group to `plan` for each two devices and frame of a loop: requests
// are shared within an iteration. None of the receives waits for another, so
// depth and blocking ancestors do not matter. `task_blocker` as in
// AnalysisOptions.
void GroupDynamicReceives(
    const PartitionView& view, const std::vector<DynamicReceive>& receives,
    const std::function<std::string(const std::string&)>& task_blocker,
    FusePlan* plan);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_DYNAMIC_GROUPS_H_

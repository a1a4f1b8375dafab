// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/deadlock_check.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tf_fuse {

namespace {

// Index of the first group on a cycle of the contracted graph, or -1: groups of
// operations are counted first, then those of receives. All nodes of a block
// become one; the blocks that a topological sort from both ends cannot remove
// are those on cycles, or between two of them.
int FindGroupOnCycle(const PartitionView& view, const FusePlan& plan) {
  std::vector<int> block(view.size(), -1);
  // The nodes of group g are block g.
  int blocks = 0;
  for (const OperationGroup& group : plan.operation_groups) {
    for (const NodeId id : group.nodes) block[id] = blocks;
    ++blocks;
  }
  for (const FuseGroup& group : plan.groups) {
    for (const Receive* receive : group.receives) {
      // Each of a dynamic group stays an operation of its own.
      if (!group.dynamic) block[receive->node] = blocks;
    }
    ++blocks;
  }
  for (int& b : block) {
    if (b < 0) b = blocks++;
  }
  std::vector<std::vector<int>> successors(blocks);
  std::vector<std::vector<int>> predecessors(blocks);
  for (NodeId id = 0; id < view.size(); ++id) {
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      if (edge.is_back_edge) continue;
      // Operations of one group run in an order in which they can.
      const bool within_operations =
          block[id] == block[edge.node] &&
          block[id] < static_cast<int>(plan.operation_groups.size());
      if (within_operations) continue;
      successors[block[edge.node]].push_back(block[id]);
      predecessors[block[id]].push_back(block[edge.node]);
    }
  }
  std::vector<bool> removed(blocks, false);
  auto peel = [&](const std::vector<std::vector<int>>& from,
                  const std::vector<std::vector<int>>& to) {
    std::vector<size_t> waiting(blocks, 0);
    std::vector<int> ready;
    for (int b = 0; b < blocks; ++b) {
      if (removed[b]) continue;
      for (const int other : from[b]) waiting[b] += removed[other] ? 0 : 1;
      if (waiting[b] == 0) ready.push_back(b);
    }
    while (!ready.empty()) {
      const int b = ready.back();
      ready.pop_back();
      removed[b] = true;
      for (const int other : to[b]) {
        if (!removed[other] && --waiting[other] == 0) ready.push_back(other);
      }
    }
  };
  peel(predecessors, successors);
  peel(successors, predecessors);
  const size_t groups = plan.operation_groups.size() + plan.groups.size();
  for (size_t g = 0; g < groups; ++g) {
    if (!removed[g]) return static_cast<int>(g);
  }
  return -1;
}

// The frame of a receive and, inside of a loop, what starts it there.
std::pair<std::string, std::set<NodeId>> StartOf(const PartitionView& view,
                                                 const Receive& receive) {
  std::set<NodeId> inputs;
  const std::string& frame = view.frame(receive.node);
  for (const PartitionView::Edge& edge : view.in_edges(receive.node)) {
    if (!frame.empty() && edge.node != receive.send) inputs.insert(edge.node);
  }
  return {frame, inputs};
}

// Index of the first group whose members do not run in the same iterations of
// the same loop, or -1. One that spans two frames might wait for itself.
int FindGroupAcrossFrames(const PartitionView& view, const FusePlan& plan) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (plan.groups[g].dynamic) continue;
    const std::vector<const Receive*>& receives = plan.groups[g].receives;
    const auto first = StartOf(view, *receives[0]);
    if (std::any_of(receives.begin(), receives.end(), [&](const Receive* r) {
          return StartOf(view, *r) != first;
        })) {
      return static_cast<int>(g);
    }
  }
  return -1;
}

void DropGroup(FusePlan* plan, int g, absl::string_view reason) {
  for (const Receive* receive : plan->groups[g].receives) {
    plan->skipped.push_back({receive, std::string(reason)});
  }
  plan->groups.erase(plan->groups.begin() + g);
}

}  // namespace

int DropGroupsThatCloseCycles(const PartitionView& view, FusePlan* plan) {
  int changes = 0;
  for (int g; (g = FindGroupAcrossFrames(view, *plan)) >= 0; ++changes) {
    DropGroup(plan, g, skip::kLoopFrame);
  }
  for (int g; (g = FindGroupOnCycle(view, *plan)) >= 0; ++changes) {
    auto& operations = plan->operation_groups;
    const int of_operations = static_cast<int>(operations.size());
    if (g < of_operations) {
      operations.erase(operations.begin() + g);
    } else {
      DropGroup(plan, g - of_operations, skip::kWouldCycle);
    }
  }
  return changes;
}

}  // namespace tf_fuse

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv_verifier.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "passes/fuse_send_analysis.h"

namespace tf_fuse {

namespace {

// Index of the first group on a cycle of the contracted graph, a packed one if
// there is one, or -1. All nodes of a block become one; the blocks that a
// topological sort from both ends cannot remove are those on cycles, or between
// two of them.
int FindGroupOnCycle(const PartitionView& view, const FusePlan& plan) {
  std::vector<int> block(view.size(), -1);
  // Of the receives of each group, and of its senders: the same block again
  // where they stay as they are.
  std::vector<std::pair<int, int>> group_blocks;
  int blocks = 0;
  for (const FuseGroup& group : plan.groups) {
    const int receives = blocks++;
    const int sends = group.packed_by_sender ? blocks++ : receives;
    group_blocks.emplace_back(receives, sends);
    for (const Receive* receive : group.receives) {
      // Each of a dynamic group stays an operation of its own.
      if (!group.dynamic) block[receive->node] = receives;
      if (group.packed_by_sender) block[receive->send] = sends;
    }
  }
  for (int& b : block) {
    if (b < 0) b = blocks++;
  }
  std::vector<std::vector<int>> successors(blocks);
  std::vector<std::vector<int>> predecessors(blocks);
  for (NodeId id = 0; id < view.size(); ++id) {
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      if (edge.is_back_edge) continue;
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
  int first = -1;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const auto [receives, sends] = group_blocks[g];
    if (removed[receives] && removed[sends]) continue;
    if (plan.groups[g].packed_by_sender) return static_cast<int>(g);
    if (first < 0) first = static_cast<int>(g);
  }
  return first;
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
    FuseGroup& group = plan->groups[g];
    if (group.packed_by_sender) {
      group.packed_by_sender = false;
      group.unpacked_reason = unpacked::kWouldCycle;
    } else {
      DropGroup(plan, g, skip::kWouldCycle);
    }
  }
  return changes;
}

}  // namespace tf_fuse

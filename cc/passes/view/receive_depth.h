// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Computes what each node waits for: how many receives one after the other, and
// which operations that may block.

#ifndef TF_FUSE_CC_PASSES_VIEW_RECEIVE_DEPTH_H_
#define TF_FUSE_CC_PASSES_VIEW_RECEIVE_DEPTH_H_

#include <map>
#include <set>
#include <vector>

#include "passes/view/partition_view.h"

namespace tf_fuse {

// What is above each node.
struct Ancestry {
  std::vector<int> depth;
  // A receive from another task: it adds one to the depth.
  std::vector<bool> is_remote;
  // Index into blocker_sets of the blocking nodes at or above the node; 0 is
  // empty.
  std::vector<int> blockers;
  std::vector<std::set<NodeId>> blocker_sets;
  // Merges of loops that wait for other blocking nodes from the second
  // iteration on. They count as blocking nodes themselves; of those that wait
  // for the same one stands for all.
  std::map<NodeId, NodeId> waiting_merges;
  // A receive above it has no visible sender, so its depth is unknown.
  std::vector<bool> partly_unseen;

  const std::set<NodeId>& BlockersAbove(NodeId id) const {
    return blocker_sets[blockers[id]];
  }
};

// Whether every node of one set is in the other.
bool IsWithin(const std::set<NodeId>& inner, const std::set<NodeId>& outer);

Ancestry ComputeAncestry(const PartitionView& view);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_RECEIVE_DEPTH_H_

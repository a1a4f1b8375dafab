// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/receive_depth.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "passes/view/blocking_ops.h"

namespace tf_fuse {

using tensorflow::Node;

bool IsWithin(const std::set<NodeId>& inner, const std::set<NodeId>& outer) {
  return std::includes(outer.begin(), outer.end(), inner.begin(), inner.end());
}

namespace {

// The blocking nodes that `id` waits for in every step: itself and those above.
// What it waits for in some steps only is stood for by the node that decides.
std::set<NodeId> BlockersOf(const PartitionView& view, NodeId id,
                            const Ancestry& ancestry) {
  const Node& node = *view.node(id);
  std::set<NodeId> all;
  std::set<NodeId> of_each_input;  // Of a Merge, which waits for one of them.
  bool is_first = true;
  for (const PartitionView::Edge& edge : view.in_edges(id)) {
    if (edge.is_back_edge) continue;
    const bool is_control = edge.src_output == tensorflow::Graph::kControlSlot;
    // From what goes round the loop, perhaps not once.
    if (node.IsExit() && is_control) continue;
    const std::set<NodeId>& set = ancestry.BlockersAbove(edge.node);
    if (!node.IsMerge() || is_control) {
      all.insert(set.begin(), set.end());
    } else if (is_first) {
      of_each_input = set;
      is_first = false;
    } else {
      std::set<NodeId> both;
      std::set_intersection(set.begin(), set.end(), of_each_input.begin(),
                            of_each_input.end(),
                            std::inserter(both, both.end()));
      of_each_input.swap(both);
    }
  }
  all.insert(of_each_input.begin(), of_each_input.end());
  auto waiting = ancestry.waiting_merges.find(id);
  if (waiting != ancestry.waiting_merges.end()) {
    all.insert(waiting->second);
  } else if (MayBlock(node) || node.IsMerge() || node.IsExit()) {
    all.insert(id);
  }
  return all;
}

// Depth and blockers of every node, given waiting_merges.
void ComputeInOrder(const PartitionView& view, Ancestry* ancestry) {
  Ancestry& result = *ancestry;
  result.depth.assign(view.size(), 0);
  result.blockers.assign(view.size(), 0);
  result.partly_unseen.assign(view.size(), false);
  std::map<std::set<NodeId>, int> interned = {{{}, 0}};
  std::vector<std::set<NodeId>>& sets = result.blocker_sets;
  sets.assign(1, {});
  result.is_remote.assign(view.size(), false);
  std::vector<bool> is_unseen(view.size(), false);
  for (const Receive& receive : view.receives()) {
    result.is_remote[receive.node] = !receive.same_task;
    is_unseen[receive.node] =
        receive.send == kNoNode && !receive.client_terminated;
  }
  for (const NodeId id : view.topological_order()) {
    int depth = 0;
    std::set<int> above;
    bool unseen = is_unseen[id];
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      if (edge.is_back_edge) continue;
      depth = std::max(depth, result.depth[edge.node]);
      above.insert(result.blockers[edge.node]);
      unseen = unseen || result.partly_unseen[edge.node];
    }
    result.depth[id] = depth + (result.is_remote[id] ? 1 : 0);
    result.partly_unseen[id] = unseen;
    if (above.size() == 1 && !MayBlock(*view.node(id)) &&
        result.waiting_merges.count(id) == 0) {
      result.blockers[id] = *above.begin();
      continue;
    }
    std::set<NodeId> set = BlockersOf(view, id, result);
    auto [it, inserted] =
        interned.emplace(std::move(set), static_cast<int>(sets.size()));
    if (inserted) sets.push_back(it->first);
    result.blockers[id] = it->second;
  }
}

// What comes round a loop is above its Merge too, an iteration later, and may
// hang on another such Merge. One stands for all of a loop, for now, which
// keeps the sets small.
void FindWaitingMerges(const PartitionView& view, Ancestry* ancestry) {
  std::map<std::string, NodeId> of_frame;
  size_t known = 0;
  do {
    known = ancestry->waiting_merges.size();
    ComputeInOrder(view, ancestry);
    for (NodeId id = 0; id < view.size(); ++id) {
      for (const PartitionView::Edge& edge : view.in_edges(id)) {
        if (edge.is_back_edge && !IsWithin(ancestry->BlockersAbove(edge.node),
                                           ancestry->BlockersAbove(id))) {
          const NodeId label =
              of_frame.emplace(view.frame(id), id).first->second;
          ancestry->waiting_merges.emplace(id, label);
        }
      }
    }
  } while (ancestry->waiting_merges.size() > known);
}

// What a Merge of a loop waits for in the first iteration, or in later ones.
std::set<NodeId> BlockersOfMerge(const PartitionView& view,
                                 const Ancestry& ancestry, NodeId merge,
                                 bool later) {
  std::set<NodeId> all;
  for (const PartitionView::Edge& edge : view.in_edges(merge)) {
    if (edge.is_back_edge != later) continue;
    const std::set<NodeId>& set = ancestry.BlockersAbove(edge.node);
    all.insert(set.begin(), set.end());
  }
  return all;
}

// Each device that takes part in a loop has such Merges of its own, and most of
// them wait for the same. One Merge stands for several others, until they
// differ in what they wait for. When no two of them differ, by induction over
// the iterations, they wait for the same.
void UniteWaitingMerges(const PartitionView& view, Ancestry* ancestry) {
  std::map<NodeId, NodeId>& merges = ancestry->waiting_merges;
  while (true) {
    ComputeInOrder(view, ancestry);
    using Key = std::tuple<NodeId, std::set<NodeId>, std::set<NodeId>>;
    std::map<Key, NodeId> first_of;
    std::map<NodeId, NodeId> labels;
    for (const auto& [merge, label] : merges) {
      Key key = {label, BlockersOfMerge(view, *ancestry, merge, false),
                 BlockersOfMerge(view, *ancestry, merge, true)};
      labels[merge] = first_of.emplace(std::move(key), merge).first->second;
    }
    if (labels == merges) return;
    merges.swap(labels);
  }
}

}  // namespace

Ancestry ComputeAncestry(const PartitionView& view) {
  Ancestry result;
  FindWaitingMerges(view, &result);
  if (!result.waiting_merges.empty()) UniteWaitingMerges(view, &result);
  return result;
}

}  // namespace tf_fuse

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/ref_reads.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::Node;

namespace {

bool HasRefInput(const Node& node) {
  const auto& types = node.input_types();
  return std::any_of(types.begin(), types.end(), &tensorflow::IsRefType);
}

bool HasRefOutput(const Node& node) {
  const auto& types = node.output_types();
  return std::any_of(types.begin(), types.end(), &tensorflow::IsRefType);
}

// May hand the memory of an input on.
bool MayForward(const Node& node) {
  static const auto* const kTypes = new std::set<std::string>{
      "Bitcast",  "CheckNumerics", "EnsureShape",     "ExpandDims",
      "Identity", "IdentityN",     "PreventGradient", "RefIdentity",
      "Reshape",  "Snapshot",      "Squeeze",         "StopGradient"};
  return node.IsSwitch() || node.IsMerge() || node.IsEnter() || node.IsExit() ||
         node.IsNextIteration() || node.type_string() == "RefSelect" ||
         kTypes->count(node.type_string()) > 0;
}

bool WritesRefInput(const Node& node) {
  return HasRefInput(node) && !MayForward(node) && !node.IsSend() &&
         node.type_string() != "IsVariableInitialized";
}

// The ref variables whose memory the value of a node may be. A node that writes
// one (Assign, ApplyAdam) hands it on by its output.
class Memories {
 public:
  explicit Memories(const PartitionView& view) : view_(view) {}

  const std::set<NodeId>& Of(NodeId id) {
    auto it = known_.find(id);
    if (it != known_.end()) return it->second;
    std::set<NodeId> found;
    std::vector<NodeId> pending = {id};
    std::set<NodeId> seen = {id};
    while (!pending.empty()) {
      const NodeId current = pending.back();
      pending.pop_back();
      const Node& node = *view_.node(current);
      const bool has_ref_input = HasRefInput(node);
      if (HasRefOutput(node) && !has_ref_input) {
        found.insert(current);  // The variable.
        continue;
      }
      if (!has_ref_input && !MayForward(node) && !node.IsSend()) continue;
      for (const PartitionView::Edge& edge : view_.in_edges(current)) {
        if (edge.src_output == tensorflow::Graph::kControlSlot) continue;
        // What arrives from another task has memory of its own.
        if (view_.node(edge.node)->IsRecv()) continue;
        const bool is_ref = has_ref_input && IsRefInput(node, edge.dst_input);
        if (has_ref_input && !is_ref && !MayForward(node)) continue;
        if (seen.insert(edge.node).second) pending.push_back(edge.node);
      }
    }
    return known_.emplace(id, std::move(found)).first->second;
  }

 private:
  static bool IsRefInput(const Node& node, int input) {
    return input >= 0 && input < node.num_inputs() &&
           tensorflow::IsRefType(node.input_type(input));
  }

  const PartitionView& view_;
  std::map<NodeId, std::set<NodeId>> known_;
};

// Answers whether there is a path between two nodes, for many pairs.
class Reachability {
 public:
  explicit Reachability(const PartitionView& view) : view_(view) {}

  // For each source (an element of `to`, all pairs of one source together), the
  // targets that it does not reach.
  std::map<NodeId, std::set<NodeId>> Unreached(
      const std::map<NodeId, std::set<NodeId>>& to) const {
    constexpr size_t kAtOnce = 64;  // One bit each.
    std::map<NodeId, std::set<NodeId>> unreached;
    std::vector<NodeId> sources;
    for (const auto& [source, targets] : to) sources.push_back(source);
    for (size_t start = 0; start < sources.size(); start += kAtOnce) {
      const size_t count = std::min(kAtOnce, sources.size() - start);
      std::vector<uint64_t> reached_by(view_.size(), 0);
      for (size_t i = 0; i < count; ++i) {
        reached_by[sources[start + i]] |= uint64_t{1} << i;
      }
      for (const NodeId id : view_.topological_order()) {
        for (const PartitionView::Edge& edge : view_.in_edges(id)) {
          if (!edge.is_back_edge) reached_by[id] |= reached_by[edge.node];
        }
      }
      for (size_t i = 0; i < count; ++i) {
        const NodeId source = sources[start + i];
        for (const NodeId target : to.at(source)) {
          if ((reached_by[target] & (uint64_t{1} << i)) == 0) {
            unreached[source].insert(target);
          }
        }
      }
    }
    return unreached;
  }

 private:
  const PartitionView& view_;
};

}  // namespace

std::set<NodeId> FindRacingRefReads(const PartitionView& view) {
  Memories memories(view);
  std::map<NodeId, std::set<NodeId>> writers;  // By variable.
  for (NodeId id = 0; id < view.size(); ++id) {
    const Node& node = *view.node(id);
    if (!WritesRefInput(node)) continue;
    for (const NodeId variable : memories.Of(id)) writers[variable].insert(id);
  }
  if (writers.empty()) return {};
  // Writers that wait for the receive are in order.
  std::map<NodeId, std::set<NodeId>> after;
  std::map<NodeId, NodeId> send_of;
  for (const Receive& receive : view.receives()) {
    if (receive.same_task || receive.send == kNoNode) continue;
    for (const NodeId variable : memories.Of(receive.send)) {
      auto it = writers.find(variable);
      if (it == writers.end()) continue;
      after[receive.node].insert(it->second.begin(), it->second.end());
      send_of[receive.node] = receive.send;
    }
  }
  const Reachability reachability(view);
  auto not_after = reachability.Unreached(after);
  // In a loop, what comes after a read may come before that of the next
  // iteration; then only updates before the loop are in order.
  std::set<NodeId> racing;
  for (const auto& [receive, nodes] : after) {
    if (view.frame(receive).empty()) continue;
    not_after[receive] = nodes;
    if (std::any_of(nodes.begin(), nodes.end(), [&](NodeId writer) {
          return !view.frame(writer).empty();
        })) {
      racing.insert(receive);
    }
  }
  // So are those that the Send waits for.
  std::map<NodeId, std::set<NodeId>> before;
  for (const auto& [receive, nodes] : not_after) {
    for (const NodeId writer : nodes) {
      before[writer].insert(send_of.at(receive));
    }
  }
  const auto not_before = reachability.Unreached(before);
  for (const auto& [receive, nodes] : not_after) {
    for (const NodeId writer : nodes) {
      auto it = not_before.find(writer);
      if (it != not_before.end() && it->second.count(send_of.at(receive)) > 0) {
        racing.insert(receive);
      }
    }
  }
  return racing;
}

}  // namespace tf_fuse

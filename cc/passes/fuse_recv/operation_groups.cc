// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/operation_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "passes/lookups/combine_rewrite.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

using tensorflow::Node;

namespace {

// Fewer are not worth an operation that takes longer to make.
constexpr size_t kMinOperations = 4;

bool IsUpdate(const std::string& type) {
  return absl::StartsWith(type, "ResourceScatter") ||
         absl::StartsWith(type, "ResourceApply") ||
         absl::StartsWith(type, "ResourceSparseApply");
}

// The one node that uses the results; null if there are several, or none.
const Node* OnlyUser(const Node& node) {
  const Node* user = nullptr;
  for (const tensorflow::Edge* edge : node.out_edges()) {
    if (edge->IsControlEdge()) continue;
    if (user != nullptr && user != edge->dst()) return nullptr;
    user = edge->dst();
  }
  return user;
}

// Whether one update of a variable, and nothing else, uses the result: some
// optimizers multiply a gradient by the learning rate where the variable is.
// (Elsewhere such arithmetic may be large, and others wait for parts of it. A
// product that several updates use would tie them to one thread.)
bool ScalesUpdate(const Node& node) {
  const Node* user = &node;
  while (user != nullptr &&
         (user->type_string() == "Neg" || user->type_string() == "Mul")) {
    user = OnlyUser(*user);
  }
  return user != &node && user != nullptr && IsUpdate(user->type_string());
}

// None blocks, and each has a kernel that is not asynchronous. An assignment of
// a whole variable is missing: it takes its input's memory over if it is the
// only one to hold it, which it would not be in a group.
bool IsGroupable(const Node& node) {
  static const auto* const kGroupable = new std::set<std::string>{
      // Reads and what lies between them and a send.
      "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "Identity",
      "Reshape", "Cast", "ExpandDims", "Squeeze", "StridedSlice", "_Send",
      "TfFuse>UniqueIds", "TfFuse>PlaceRows", "TfFuse>SumRows",
      // Gradients of equal ids are added up for an update of rows.
      "Unique", "Shape", "UnsortedSegmentSum",
      // Updates.
      "AssignAddVariableOp", "AssignSubVariableOp", "TfFuse>ElementwiseUpdate",
      "TfFuse>StagedUpdate", "TfFuse>JoinRows", "TfFuse>RoundWithFeedback",
      "TfFuse>UpdateCount"};
  const std::string& type = node.type_string();
  return kGroupable->count(type) > 0 || IsUpdate(type) || ScalesUpdate(node) ||
         node.attrs().Find(kMovedAttr) != nullptr;
}

// They wait for nothing but each other.
bool IsEarly(const std::string& op) {
  static const auto* const kEarly = new std::set<std::string>{
      "_SOURCE",   "_Arg",        "_DeviceArg", "Const",
      "HostConst", "VarHandleOp", "NoOp",       "TfFuse>UnpackHandles"};
  return kEarly->count(op) > 0;
}

// Also if it reads a reference as a value, which its type does not show.
bool HasReference(const Node& node) {
  const auto is_ref = [](tensorflow::DataType type) {
    return tensorflow::IsRefType(type);
  };
  return std::any_of(node.input_types().begin(), node.input_types().end(),
                     is_ref) ||
         std::any_of(node.output_types().begin(), node.output_types().end(),
                     is_ref) ||
         std::any_of(
             node.in_edges().begin(), node.in_edges().end(),
             [&is_ref](const tensorflow::Edge* edge) {
               return !edge->IsControlEdge() &&
                      is_ref(edge->src()->output_type(edge->src_output()));
             });
}

// Others are numbered: first the groups of receives, then all nodes.
using Waits = std::vector<int>;  // Sorted, without repetition.

class Planner {
 public:
  Planner(const PartitionView& view, const Liveness& liveness,
          const FusePlan& receives,
          const std::function<bool(const std::string&)>& runs_groups)
      : view_(view),
        receives_(receives),
        liveness_(liveness),
        runs_groups_(runs_groups) {
    other_of_.resize(view.size(), -1);
    waits_.resize(view.size());
    is_early_.resize(view.size(), false);
    others_ = static_cast<int>(receives.groups.size());
    for (int i = 0; i < others_; ++i) {
      if (receives.groups[i].dynamic) continue;
      for (const Receive* receive : receives.groups[i].receives) {
        other_of_[receive->node] = i;
      }
    }
  }

  std::vector<OperationGroup> Plan() {
    std::map<std::pair<std::string, Waits>, OperationGroup> groups;
    for (const NodeId id : view_.topological_order()) {
      Waits waits = WaitsOf(id);
      if (Groups(id)) {
        groups[{view_.partition(id), waits}].nodes.push_back(id);
      } else if (HasEarlyInputs(id) && IsEarly(view_.node(id)->type_string())) {
        is_early_[id] = true;
      } else if (other_of_[id] < 0) {
        other_of_[id] = others_ + id;
      }
      waits_[id] = std::move(waits);
    }
    std::vector<OperationGroup> result;
    for (auto& [_, group] : groups) {
      if (group.nodes.size() < kMinOperations) continue;
      result.push_back(std::move(group));
    }
    AddSends(&result);
    return result;
  }

 private:
  // Groups what is left of the sends of each fused receive.
  void AddSends(std::vector<OperationGroup>* groups) {
    std::vector<bool> is_grouped(view_.size(), false);
    for (const OperationGroup& group : *groups) {
      for (const NodeId id : group.nodes) is_grouped[id] = true;
    }
    for (const FuseGroup& fused : receives_.groups) {
      if (fused.dynamic) continue;
      OperationGroup sends;
      for (const Receive* receive : fused.receives) {
        const NodeId send = receive->send;
        if (send == kNoNode || is_grouped[send] || !Groups(send) ||
            !IsLast(send)) {
          continue;
        }
        sends.nodes.push_back(send);
      }
      if (sends.nodes.size() >= kMinOperations) groups->push_back(sends);
    }
  }

  // Nothing in its partition waits for it.
  bool IsLast(NodeId id) const {
    const auto& edges = view_.node(id)->out_edges();
    return std::none_of(
        edges.begin(), edges.end(),
        [](const tensorflow::Edge* edge) { return edge->dst()->IsOp(); });
  }

  Waits WaitsOf(NodeId id) const {
    Waits waits;
    for (const PartitionView::Edge& edge : view_.in_edges(id)) {
      if (edge.is_back_edge ||
          view_.partition(edge.node) != view_.partition(id)) {
        continue;
      }
      if (other_of_[edge.node] >= 0) {
        waits.push_back(other_of_[edge.node]);
      } else {
        const Waits& more = waits_[edge.node];
        waits.insert(waits.end(), more.begin(), more.end());
      }
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    return waits;
  }

  // An operation of a group that waits for nothing is not early: what follows
  // it does not come before the group.
  bool HasEarlyInputs(NodeId id) const {
    const auto& edges = view_.in_edges(id);
    return std::all_of(edges.begin(), edges.end(), [this](const auto& edge) {
      return is_early_[edge.node];
    });
  }

  bool Groups(NodeId id) {
    const Node& node = *view_.node(id);
    return IsGroupable(node) && view_.frame(id).empty() &&
           !liveness_.MayBeDead(id) && !HasReference(node) &&
           RunsGroups(view_.partition(id));
  }

  bool RunsGroups(const std::string& device) {
    auto it = runs_.find(device);
    if (it == runs_.end()) {
      const bool runs =
          DeviceTypeOf(device) == "CPU" && runs_groups_(TaskOfDevice(device));
      it = runs_.emplace(device, runs).first;
    }
    return it->second;
  }

  const PartitionView& view_;
  const FusePlan& receives_;
  const Liveness& liveness_;
  const std::function<bool(const std::string&)>& runs_groups_;
  std::map<std::string, bool> runs_;
  std::vector<int> other_of_;  // Of each node; -1: it is not an other.
  std::vector<Waits> waits_;
  std::vector<bool> is_early_;
  int others_ = 0;
};

// The places of the group's receives by the group of operations that their
// _Send is in; -1: in none.
std::map<int, std::vector<size_t>> PlacesBySender(
    const FuseGroup& group, const std::vector<int>& operation_group) {
  std::map<int, std::vector<size_t>> places;
  for (size_t i = 0; i < group.receives.size(); ++i) {
    const NodeId send = group.receives[i]->send;
    places[send == kNoNode ? -1 : operation_group[send]].push_back(i);
  }
  return places;
}

void PlanJointSendsOf(const std::vector<int>& operation_group,
                      FuseGroup* group) {
  std::vector<size_t> order, one_by_one;
  for (const auto& [sender, places] : PlacesBySender(*group, operation_group)) {
    const bool joint = sender >= 0 && places.size() > 1;
    if (joint) group->joint_sends.push_back(static_cast<int>(places.size()));
    std::vector<size_t>& to = joint ? order : one_by_one;
    to.insert(to.end(), places.begin(), places.end());
  }
  if (order.empty()) return;
  order.insert(order.end(), one_by_one.begin(), one_by_one.end());
  std::vector<const Receive*> receives;
  std::vector<bool> may_be_dead;
  for (const size_t i : order) {
    receives.push_back(group->receives[i]);
    may_be_dead.push_back(group->may_be_dead[i]);
  }
  group->receives = std::move(receives);
  group->may_be_dead = std::move(may_be_dead);
}

}  // namespace

std::vector<OperationGroup> PlanOperationGroups(
    const PartitionView& view, const Liveness& liveness,
    const FusePlan& receives,
    const std::function<bool(const std::string& task)>& runs_groups) {
  return Planner(view, liveness, receives, runs_groups).Plan();
}

void PlanJointSends(const PartitionView& view, FusePlan* plan) {
  std::vector<int> operation_group(view.size(), -1);
  for (size_t g = 0; g < plan->operation_groups.size(); ++g) {
    for (const NodeId id : plan->operation_groups[g].nodes) {
      operation_group[id] = static_cast<int>(g);
    }
  }
  for (FuseGroup& group : plan->groups) {
    if (!group.dynamic) PlanJointSendsOf(operation_group, &group);
  }
}

}  // namespace tf_fuse

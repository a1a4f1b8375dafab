// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/liveness.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

#include "tensorflow/core/framework/node_def_util.h"

namespace tf_fuse {

using tensorflow::Graph;
using tensorflow::Node;

namespace {

// A conjunction this long is not worth keeping apart: it may be dead.
constexpr size_t kMaxLiterals = 64;

bool IsSwitchNode(const Node& node) {
  return node.IsSwitch() || node.type_string() == "_SwitchN";
}

bool IsMergeNode(const Node& node) { return node.IsMerge(); }

bool PassesValueOn(const Node& node) {
  const std::string& op = node.type_string();
  return op == "Identity" || op == "_Send" || op == "_HostSend" ||
         op == "_Recv" || op == "_HostRecv";
}

}  // namespace

Liveness::Liveness(const PartitionView& view, std::set<NodeId> live_receives)
    : view_(view), live_receives_(std::move(live_receives)) {
  Intern({});  // kAlways.
  // Loops are first taken to keep what goes round them alive; where that does
  // not hold, their exits may be dead, which may affect other loops in turn.
  while (true) {
    ComputeAll();
    std::set<NodeId> unsteady = FindUnsteadyMerges();
    if (unsteady == unsteady_merges_) return;
    unsteady_merges_.insert(unsteady.begin(), unsteady.end());
  }
}

void Liveness::ComputeAll() {
  conditions_.assign(view_.size(), kAlways);
  frame_entry_.clear();
  for (const NodeId id : view_.topological_order()) {
    conditions_[id] = Compute(id);
    if (!view_.node(id)->IsEnter()) continue;
    auto [it, inserted] =
        frame_entry_.emplace(view_.frame(id), conditions_[id]);
    if (!inserted) it->second = And(it->second, conditions_[id]);
  }
}

Liveness::ConditionId Liveness::Intern(Conjunction literals) {
  std::sort(literals.begin(), literals.end());
  literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
  auto [it, inserted] = interned_.emplace(
      literals, static_cast<ConditionId>(conjunctions_.size()));
  if (inserted) conjunctions_.push_back(std::move(literals));
  return it->second;
}

const Liveness::Literal Liveness::kTooLong = {std::numeric_limits<int>::min(),
                                              0};

Liveness::ConditionId Liveness::And(ConditionId a, ConditionId b) {
  if (a == b || b == kAlways) return a;
  if (a == kAlways) return b;
  Conjunction both = conjunctions_[a];
  both.insert(both.end(), conjunctions_[b].begin(), conjunctions_[b].end());
  // Dropping literals would claim more life than there is; an unknown in their
  // place says "may be dead", and nothing ever resolves it.
  if (both.size() > 2 * kMaxLiterals) both = {kTooLong};
  return Intern(std::move(both));
}

Liveness::ConditionId Liveness::Unknown(NodeId id) {
  return Intern({{-1 - id, 0}});
}

std::pair<NodeId, int> Liveness::StemOf(NodeId id, int input) const {
  std::pair<NodeId, int> source = {id, -1};
  for (const PartitionView::Edge& edge : view_.in_edges(id)) {
    if (edge.dst_input == input) source = {edge.node, edge.src_output};
  }
  while (PassesValueOn(*view_.node(source.first))) {
    const PartitionView::Edge* data = nullptr;
    for (const PartitionView::Edge& edge : view_.in_edges(source.first)) {
      if (edge.dst_input == 0 && !edge.is_back_edge) data = &edge;
    }
    if (data == nullptr) break;
    source = {data->node, data->src_output};
  }
  return source;
}

int Liveness::PredicateIndex(NodeId switch_id) {
  // Input 1 of Switch, RefSwitch and _SwitchN selects the output.
  const std::pair<NodeId, int> source = StemOf(switch_id, 1);
  const int outputs = view_.node(switch_id)->num_outputs();
  auto [it, inserted] =
      predicates_.emplace(source, static_cast<int>(predicate_arity_.size()));
  if (inserted) predicate_arity_.push_back(outputs);
  // Used with different numbers of outputs: then no set of values is complete.
  if (predicate_arity_[it->second] != outputs) {
    predicate_arity_[it->second] = 0;
  }
  if (view_.node(source.first)->IsLoopCond()) {
    loop_predicates_.insert(it->second);
  }
  return it->second;
}

Liveness::ConditionId Liveness::OfEdge(const PartitionView::Edge& edge) {
  const ConditionId condition = conditions_[edge.node];
  if (!IsSwitchNode(*view_.node(edge.node))) return condition;
  // The node's own condition is that of its inputs plus an unknown (its outputs
  // are never all live); replace the unknown by what the output says.
  Conjunction literals = conjunctions_[condition];
  const Literal unknown = {-1 - edge.node, 0};
  literals.erase(std::remove(literals.begin(), literals.end(), unknown),
                 literals.end());
  // A control edge from a Switch is live whichever output is.
  if (edge.src_output != Graph::kControlSlot) {
    literals.push_back({PredicateIndex(edge.node), edge.src_output});
  }
  return Intern(std::move(literals));
}

Liveness::ConditionId Liveness::OfInputs(NodeId id) {
  ConditionId condition = kAlways;
  for (const PartitionView::Edge& edge : view_.in_edges(id)) {
    if (!edge.is_back_edge) condition = And(condition, OfEdge(edge));
  }
  return condition;
}

Liveness::ConditionId Liveness::OfMerge(NodeId id) {
  std::set<Conjunction> alternatives;
  for (const PartitionView::Edge& edge : view_.in_edges(id)) {
    if (edge.src_output == Graph::kControlSlot) continue;
    alternatives.insert(conjunctions_[OfEdge(edge)]);
  }
  // C and P==0, …, C and P==n-1 together are C; repeat for nested conditionals.
  bool changed = true;
  while (changed && alternatives.size() > 1) {
    changed = false;
    for (const Conjunction& some : alternatives) {
      for (const Literal& literal : some) {
        if (literal.predicate < 0) continue;
        const int arity = predicate_arity_[literal.predicate];
        if (arity == 0) continue;
        Conjunction rest = some;
        rest.erase(std::find(rest.begin(), rest.end(), literal));
        std::vector<Conjunction> all;
        for (int value = 0; value < arity; ++value) {
          Conjunction one = rest;
          one.push_back({literal.predicate, value});
          std::sort(one.begin(), one.end());
          if (alternatives.count(one) > 0) all.push_back(std::move(one));
        }
        if (static_cast<int>(all.size()) != arity) continue;
        for (const Conjunction& one : all) alternatives.erase(one);
        alternatives.insert(std::move(rest));
        changed = true;
        break;
      }
      if (changed) break;
    }
  }
  // An alternative that every other one implies stands for them all.
  for (const Conjunction& weakest : alternatives) {
    const bool implied = std::all_of(
        alternatives.begin(), alternatives.end(), [&](const Conjunction& c) {
          return std::includes(c.begin(), c.end(), weakest.begin(),
                               weakest.end());
        });
    if (implied) return Intern(weakest);
  }
  return Unknown(id);
}

Liveness::ConditionId Liveness::OfLoopMerge(NodeId id) {
  ConditionId condition = kAlways;
  for (const PartitionView::Edge& edge : view_.in_edges(id)) {
    if (edge.is_back_edge || edge.src_output == Graph::kControlSlot) continue;
    condition = And(condition, OfEdge(edge));
  }
  return unsteady_merges_.count(id) > 0 ? And(Unknown(id), condition)
                                        : condition;
}

bool Liveness::HoldsInLoop(const Conjunction& literals,
                           ConditionId entry) const {
  const Conjunction& allowed = conjunctions_[entry];
  return std::all_of(
      literals.begin(), literals.end(), [&](const Literal& literal) {
        return (literal.value == 1 &&
                loop_predicates_.count(literal.predicate) > 0) ||
               std::binary_search(allowed.begin(), allowed.end(), literal);
      });
}

bool Liveness::LeavesWhenLoopEnds(NodeId exit) const {
  const auto [switch_id, output] = StemOf(exit, 0);
  if (!IsSwitchNode(*view_.node(switch_id)) || output != 0) return false;
  const NodeId predicate = StemOf(switch_id, 1).first;
  if (!view_.node(predicate)->IsLoopCond() ||
      view_.frame(predicate) != view_.frame(exit)) {
    return false;
  }
  Conjunction literals = conjunctions_[conditions_[switch_id]];
  const Literal unknown = {-1 - switch_id, 0};
  literals.erase(std::remove(literals.begin(), literals.end(), unknown),
                 literals.end());
  return HoldsInLoop(literals, frame_entry_.at(view_.frame(exit)));
}

Liveness::ConditionId Liveness::OfExit(NodeId id) {
  // Its data input comes from the loop's Switch, whose literal says "the loop
  // has ended", which happens in every step that enters it.
  auto it = frame_entry_.find(view_.frame(id));
  if (it == frame_entry_.end()) return Unknown(id);
  if (!LeavesWhenLoopEnds(id)) return And(Unknown(id), it->second);
  return it->second;
}

Liveness::ConditionId Liveness::Compute(NodeId id) {
  const Node& node = *view_.node(id);
  if (view_.frame(id) == kUnknownFrame) return Unknown(id);
  if (IsMergeNode(node)) {
    for (const PartitionView::Edge& edge : view_.in_edges(id)) {
      if (edge.is_back_edge) return OfLoopMerge(id);
    }
    return OfMerge(id);
  }
  if (node.IsExit()) return OfExit(id);
  if (IsSwitchNode(node)) return And(OfInputs(id), Unknown(id));
  if (node.IsRecv()) {
    // What the client feeds is live.
    bool has_sender = false;
    TryGetNodeAttr(node.attrs(), "client_terminated", &has_sender);
    has_sender = has_sender || live_receives_.count(id) > 0;
    for (const PartitionView::Edge& edge : view_.in_edges(id)) {
      has_sender = has_sender || edge.src_output != Graph::kControlSlot;
    }
    if (!has_sender) return And(OfInputs(id), Unknown(id));
  }
  return OfInputs(id);
}

std::set<NodeId> Liveness::FindUnsteadyMerges() {
  std::set<NodeId> unsteady = unsteady_merges_;
  for (NodeId id = 0; id < view_.size(); ++id) {
    if (!IsMergeNode(*view_.node(id))) continue;
    for (const PartitionView::Edge& edge : view_.in_edges(id)) {
      if (!edge.is_back_edge) continue;
      auto entry = frame_entry_.find(view_.frame(id));
      // What comes round may depend on the loop going on, and on what the loop
      // was entered under; on nothing else.
      if (entry == frame_entry_.end() ||
          !HoldsInLoop(conjunctions_[OfEdge(edge)], entry->second)) {
        unsteady.insert(id);
      }
    }
  }
  return unsteady;
}

}  // namespace tf_fuse

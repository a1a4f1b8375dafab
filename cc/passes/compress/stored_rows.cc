// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/compress/stored_rows.h"

#include "passes/compress/node_roles.h"
#include "passes/view/placed_nodes.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

// Whether an assignment's value is computed from what its variable was, all of
// it: then it is an update, such as `w.assign(w - rate * gradient)`, or a
// moving average.
bool UsesOldValue(const Edge& value) {
  const Handle handle = HandleOf(*value.dst(), 0);
  if (handle.first == nullptr) return false;
  std::vector<const Node*> waiting = {value.src()};
  std::set<const Node*> seen;
  for (size_t i = 0; i < waiting.size(); ++i) {  // The old value is near.
    const Node* node = waiting[i];
    if (!node->IsOp() || !seen.insert(node).second) continue;
    if (node->type_string() == "ReadVariableOp" &&
        HandleOf(*node, 0) == handle) {
      return true;
    }
    // The old value with other rows in it is not computed with.
    if (node->type_string() == "TensorScatterUpdate") continue;
    for (const Edge* in : node->in_edges()) {
      if (CarriesValues(*in)) waiting.push_back(in->src());
    }
  }
  return false;
}

}  // namespace

StoredRows::StoredRows(const Graph& graph, StaticRanks* ranks) : ranks_(ranks) {
  for (const Node* node : graph.op_nodes()) {
    if (!IsAssignment(node->type_string())) continue;
    for (const Edge* edge : node->in_edges()) {
      if (!CarriesValues(*edge)) continue;
      Add({node, /*is_computed=*/false, /*is_of_server=*/false});
      if (IsStored(*edge)) {
        Add({node, /*is_computed=*/true, /*is_of_server=*/false});
      }
    }
  }
  while (!waiting_.empty()) {
    const State state = waiting_.back();
    waiting_.pop_back();
    GoBack(state);
  }
}

bool StoredRows::LeadsTo(const Edge& edge) const {
  return leading_.count({edge.dst(), false, false}) > 0;
}

void StoredRows::Add(const State& state) {
  if (leading_.insert(state).second) waiting_.push_back(state);
}

void StoredRows::GoBack(const State& state) {
  const auto& [node, is_computed, is_of_server] = state;
  for (const Edge* edge : node->in_edges()) {
    const Node* source = edge->src();
    if (!CarriesValues(*edge) || !source->IsOp() ||
        IsUpdate(source->type_string())) {
      continue;
    }
    const bool is_near = DeviceOf(*source) == DeviceOf(*node);
    const bool computes = !Moves(*source);
    const bool serves = computes && !IsWorker(DeviceOf(*source));
    for (const bool was_computed : {false, true}) {
      for (const bool was_of_server : {false, true}) {
        if ((was_computed || computes) == is_computed &&
            ((was_of_server || serves) && is_near) == is_of_server) {
          Add({source, was_computed, was_of_server});
        }
      }
    }
  }
}

bool StoredRows::IsStored(const Edge& edge) {
  const Node& node = *edge.dst();
  const bool by_server =
      DeviceOf(*edge.src()) == DeviceOf(node) && !Moves(*edge.src());
  return !by_server && !MarkOfInput(node, 0).empty() &&
         ranks_->Of(*edge.src(), edge.src_output()) != 0 &&
         !(node.type_string() == "AssignVariableOp" && UsesOldValue(edge));
}

}  // namespace tf_fuse

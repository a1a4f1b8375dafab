// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/lookups/combine_rewrite.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "passes/view/placed_nodes.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

bool WaitsForAnother(const Node& node) {
  const auto& edges = node.in_edges();
  return std::any_of(edges.begin(), edges.end(),
                     [](const Edge* edge) { return edge->src()->IsOp(); });
}

// An input that is not a constant, on the node's device if there is one.
Node* InputToWaitFor(const Node& node) {
  Node* found = nullptr;
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge() || edge->src()->IsConstant()) continue;
    if (found == nullptr || DeviceOf(*edge->src()) == DeviceOf(node)) {
      found = edge->src();
    }
  }
  return found;
}

// Gives a node its own copy of a constant, on its device.
absl::Status CopyConstant(const Edge& edge, Graph* graph) {
  const Node* constant = edge.src();
  Node* user = edge.dst();
  const int input = edge.dst_input();
  // A constant in a loop or a conditional waits for a node of it. The copy
  // waits for one that the user waits for, too.
  Node* before = graph->source_node();
  if (WaitsForAnother(*constant)) before = InputToWaitFor(*user);
  const auto* value = constant->attrs().Find("value");
  if (before == nullptr || value == nullptr) return absl::OkStatus();
  Node* copy = nullptr;
  const absl::Status status =
      tensorflow::NodeBuilder(
          graph->NewName(absl::StrCat(constant->name(), "/copy")), "Const",
          graph->op_registry())
          .Attr("dtype", constant->output_type(0))
          .Attr("value", *value)
          .Device(DeviceOf(*user))
          .Finalize(graph, &copy);
  if (!status.ok()) return status;
  copy->set_assigned_device_name(DeviceOf(*user));
  graph->AddControlEdge(before, copy);
  return graph->UpdateEdge(copy, 0, user, input);
}

}  // namespace

absl::Status ApplyCombiners(const std::vector<MovedOperation>& plan,
                            Graph* graph) {
  for (const MovedOperation& moved : plan) {
    moved.node->set_requested_device(moved.device);
    moved.node->set_assigned_device_name(moved.device);
    moved.node->AddAttr(kMovedAttr, true);
    // (Who it was to be beside, it is not now.)
    moved.node->ClearAttr(tensorflow::kColocationAttrName);
  }
  for (const MovedOperation& moved : plan) {
    for (int input = 0; input < moved.node->num_inputs(); ++input) {
      const Edge* edge = InputOf(*moved.node, input);
      if (edge == nullptr || !edge->src()->IsConstant() ||
          DeviceOf(*edge->src()) == moved.device) {
        continue;
      }
      const absl::Status status = CopyConstant(*edge, graph);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_fuse

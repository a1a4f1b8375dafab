// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/placed_nodes.h"

#include <algorithm>

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

std::string DeviceOf(const Node& node) {
  return node.has_assigned_device_name() ? node.assigned_device_name()
                                         : node.requested_device();
}

std::vector<Node*> NodesByName(const Graph& graph) {
  std::vector<Node*> nodes;
  for (Node* node : graph.op_nodes()) nodes.push_back(node);
  std::sort(nodes.begin(), nodes.end(),
            [](const Node* a, const Node* b) { return a->name() < b->name(); });
  return nodes;
}

const Edge* InputOf(const Node& node, int input) {
  const Edge* edge = nullptr;
  return node.input_edge(input, &edge).ok() ? edge : nullptr;
}

}  // namespace tf_fuse

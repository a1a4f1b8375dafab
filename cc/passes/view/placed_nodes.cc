// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/placed_nodes.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Node;

std::string DeviceOf(const Node& node) {
  return node.has_assigned_device_name() ? node.assigned_device_name()
                                         : node.requested_device();
}

const Edge* InputOf(const Node& node, int input) {
  const Edge* edge = nullptr;
  return node.input_edge(input, &edge).ok() ? edge : nullptr;
}

}  // namespace tf_fuse

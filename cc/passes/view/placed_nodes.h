// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Questions about nodes of a graph whose devices are known, before it is cut.

#ifndef TF_FUSE_CC_PASSES_VIEW_PLACED_NODES_H_
#define TF_FUSE_CC_PASSES_VIEW_PLACED_NODES_H_

#include <string>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// The assigned one, or the requested one.
std::string DeviceOf(const tensorflow::Node& node);

// The operations of a graph. (The order of a graph is that of its making.)
std::vector<tensorflow::Node*> NodesByName(const tensorflow::Graph& graph);

// The edge of a data input; nullptr if there is none.
const tensorflow::Edge* InputOf(const tensorflow::Node& node, int input);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_PLACED_NODES_H_

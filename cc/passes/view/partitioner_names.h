// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Parses the names that TensorFlow's partitioner gives to the nodes and tensors
// that it makes.

#ifndef TF_FUSE_CC_PASSES_VIEW_PARTITIONER_NAMES_H_
#define TF_FUSE_CC_PASSES_VIEW_PARTITIONER_NAMES_H_

#include <string>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// "a" of the tensor name "edge_12_a", which the partitioner gives to what node
// "a" sends; empty if `tensor_name` is not of that form.
std::string SourceOfTensorName(const std::string& tensor_name);

// Whether the partitioner made `node` to handle the value of node `source`.
bool IsMadeByPartitioner(const tensorflow::Node& node,
                         const std::string& source);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_PARTITIONER_NAMES_H_

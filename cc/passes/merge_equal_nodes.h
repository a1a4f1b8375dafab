// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Merges the arithmetic that an optimizer does for each variable, such as the
// bias correction of its rate. TensorFlow merges it later, when updates that
// wait for the same numbers can no longer become one operation.

#ifndef TF_FUSE_CC_PASSES_MERGE_EQUAL_NODES_H_
#define TF_FUSE_CC_PASSES_MERGE_EQUAL_NODES_H_

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Of a ReadVariableOp, a bool: it may be merged with another read of its
// variable that waits for the same nodes. Written by
// tf_fuse/fuse_update/rewrite/shared_reads.py.
extern const char kSharedReadAttr[];

// Merges such reads, and operations without state that compute the same, in a
// partition that has updates of tf_fuse; leaves others alone.
void MergeEqualNodes(tensorflow::Graph* graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_MERGE_EQUAL_NODES_H_

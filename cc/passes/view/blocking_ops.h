// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Finds operations that may wait for something outside of the graph: another
// step, another worker, or the user's own code.

#ifndef TF_FUSE_CC_PASSES_VIEW_BLOCKING_OPS_H_
#define TF_FUSE_CC_PASSES_VIEW_BLOCKING_OPS_H_

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Errs on the side of true: what calls a function, and every stateful operation
// that is not known to end by itself, such as one of the user's own.
bool MayBlock(const tensorflow::Node& node);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_BLOCKING_OPS_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which tensors must not share their memory: received ones that of a
// frame, and others that of an equal one.

#ifndef TF_FUSE_CC_PASSES_VIEW_FRAME_ALIASING_H_
#define TF_FUSE_CC_PASSES_VIEW_FRAME_ALIASING_H_

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Whether the value must be copied out of the frame, to have memory of its own
// as any received value has in stock TensorFlow: because a consumer may hold it
// longer than the step (a queue, a stack, a TensorList, a value that a function
// returns) or, for one received in a loop, longer than the iteration; or
// computes otherwise with it.
bool NeedsOwnMemory(const tensorflow::Node& recv, bool in_loop);

// Whether it matters for a reader's result who else reads the value: an AddN
// of three or more floats begins with an input that nobody else reads, and some
// operations write over their input.
bool DependsOnOwner(const tensorflow::Node& node);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_FRAME_ALIASING_H_

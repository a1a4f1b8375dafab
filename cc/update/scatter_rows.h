// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Adds rows to a variable, or subtracts them, as TensorFlow's kernels of
// ResourceScatterAdd and ResourceScatterSub do, which start an Eigen evaluation
// for each row: with rows of 16 numbers, that is most of what they cost.

#ifndef TF_FUSE_CC_UPDATE_SCATTER_ROWS_H_
#define TF_FUSE_CC_UPDATE_SCATTER_ROWS_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

// Does the work of `ctx`, a ResourceScatterAdd or ResourceScatterSub: the same
// additions in the same order, under the same lock. Returns false, with nothing
// done, if TensorFlow's kernel is to do it: on all that it refuses, on types
// other than float and double, and on as many rows as it updates in parallel.
bool ScatterRows(tensorflow::OpKernelContext* ctx, bool subtract);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_SCATTER_ROWS_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads few rows of a variable without TensorFlow's kernel, which takes longer
// to begin than to copy them.

#ifndef TF_FUSE_CC_KERNELS_GATHER_ROWS_H_
#define TF_FUSE_CC_KERNELS_GATHER_ROWS_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

// Sets the output of the ResourceGather (without batch dimensions) whose inputs
// `ctx` has, under the same lock as TensorFlow's kernel. False if nothing was
// done: much data, rows that are not there, other errors, types whose elements
// are not plain bytes. The kernel does these.
bool GatherRows(tensorflow::OpKernelContext* ctx);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_KERNELS_GATHER_ROWS_H_

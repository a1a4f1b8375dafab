// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs an update's program on several threads where that pays.

#ifndef TF_FUSE_CC_UPDATE_UPDATE_THREADS_H_
#define TF_FUSE_CC_UPDATE_UPDATE_THREADS_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "update/update_program.h"

namespace tf_fuse {

// Runs all of a program: on the calling thread, and on others of the kernel's
// device as well where it takes long enough for that.
void RunOnThreads(tensorflow::OpKernelContext* ctx,
                  const CompiledUpdate& program, const ProgramMemory& memory);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_UPDATE_THREADS_H_

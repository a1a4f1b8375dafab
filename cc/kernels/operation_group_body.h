// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads the body of a TfFuse>OperationGroup.

#ifndef TF_FUSE_CC_KERNELS_OPERATION_GROUP_BODY_H_
#define TF_FUSE_CC_KERNELS_OPERATION_GROUP_BODY_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

// The output of an operation before (`operation` >= 0), or an input of the
// group.
struct OperationSource {
  int operation = -1;
  int index = 0;
};

// What is done without TensorFlow's kernel, where that can be.
enum class Shortcut { kNone, kAddRows, kSubtractRows, kGatherRows };

struct GroupedOperation {
  std::unique_ptr<tensorflow::OpKernel> kernel;
  std::vector<OperationSource> inputs;
  Shortcut shortcut = Shortcut::kNone;
  std::vector<int> results;  // Per output, the group's; -1: of nobody else.
};

// Reads the attributes of the kernel that `ctx` makes. `components` get
// operations that need each other, or have the same variable, in order. Errors:
// InvalidArgument for a body that no graph pass of ours has made.
absl::Status ReadOperationGroup(tensorflow::OpKernelConstruction* ctx,
                                std::vector<GroupedOperation>* operations,
                                std::vector<std::vector<int>>* components);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_KERNELS_OPERATION_GROUP_BODY_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads the body of a TfFuse>OperationGroup.

#ifndef TF_FUSE_CC_KERNELS_OPERATION_GROUP_BODY_H_
#define TF_FUSE_CC_KERNELS_OPERATION_GROUP_BODY_H_

#include <cstdint>
#include <memory>
#include <string>
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
  // Null: a _Send that is part of a joint send, and has its place there.
  std::unique_ptr<tensorflow::OpKernel> kernel;
  int joint_send = -1;
  int place = 0;
  std::vector<OperationSource> inputs;
  Shortcut shortcut = Shortcut::kNone;
  std::vector<int> results;  // Per output, the group's; -1: of nobody else.
};

// The parts of its rendezvous key, and how many tensors it has.
struct JointSendKey {
  std::string tensor_name;
  std::string send_device;
  int64_t send_device_incarnation = 0;
  std::string recv_device;
  int tensors = 0;
};

struct GroupBody {
  std::vector<GroupedOperation> operations;
  // Operations that need each other, or have the same variable, in order.
  std::vector<std::vector<int>> components;
  std::vector<JointSendKey> joint_sends;
};

// Reads the attributes of the kernel that `ctx` makes. Errors: InvalidArgument
// for a body that no graph pass of ours has made.
absl::Status ReadOperationGroup(tensorflow::OpKernelConstruction* ctx,
                                GroupBody* body);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_KERNELS_OPERATION_GROUP_BODY_H_

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The variables of one update, and their locks.

#ifndef TF_FUSE_CC_UPDATE_LOCKED_VARIABLES_H_
#define TF_FUSE_CC_UPDATE_LOCKED_VARIABLES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tf_fuse {

using Variables = std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>;

// The error of a variable that a read of fails in TensorFlow.
absl::Status UnreadableVariable(const std::string& variable,
                                absl::string_view why);

// Looks up the variables that the first `count` inputs of an operation are
// handles of. No two may be the same.
absl::Status LookUpVariables(tensorflow::OpKernelContext* ctx, int count,
                             Variables* variables);

// Locks of all, in the order that TensorFlow's kernels have.
class VariableLocks {
 public:
  explicit VariableLocks(const Variables& variables);
  ~VariableLocks();
  VariableLocks(const VariableLocks&) = delete;
  VariableLocks& operator=(const VariableLocks&) = delete;

 private:
  std::vector<tensorflow::mutex*> mutexes_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_LOCKED_VARIABLES_H_

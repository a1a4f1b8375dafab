// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Looks up the variables of one update, and locks them.

#ifndef TF_FUSE_CC_UPDATE_LOCKED_VARIABLES_H_
#define TF_FUSE_CC_UPDATE_LOCKED_VARIABLES_H_

#include <cstdint>
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

  // How long it took to get them; 0 if nobody had one.
  int64_t waited_us() const { return waited_us_; }
  // How long they have been held.
  int64_t HeldNs() const;

 private:
  std::vector<tensorflow::mutex*> mutexes_;
  int64_t waited_us_ = 0;
  int64_t locked_at_ns_ = 0;
};

// Tells the UpdateLog of updates on a server. An operation that is counted has
// one more input, what TfFuse>UpdateCount returned when the step began, and the
// attributes `C` (1), `subject` (the index of its variable that stands for all)
// and `worker` (the task in whose step it is; update_stamp_pass.cc).
class CountedUpdate {
 public:
  // Of a kernel, when it is made. `variables` is how many it has.
  absl::Status Init(tensorflow::OpKernelConstruction* ctx, int variables);
  // The update has been made, under the locks.
  void Add(tensorflow::OpKernelContext* ctx, const VariableLocks& locks) const;

 private:
  bool is_counted_ = false;
  int subject_ = 0;
  std::string worker_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_LOCKED_VARIABLES_H_

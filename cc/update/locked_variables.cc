// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/locked_variables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_fuse {

using tensorflow::OpKernelContext;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

absl::Status UnreadableVariable(const std::string& variable,
                                absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Error while reading resource variable ", variable,
      ". This could mean that the variable has been deleted or is not "
      "initialized. ",
      why));
}

absl::Status LookUpVariables(OpKernelContext* ctx, int count,
                             Variables* variables) {
  for (int i = 0; i < count; ++i) {
    RefCountPtr<Var> variable;
    const tensorflow::ResourceHandle& handle =
        tensorflow::HandleFromInput(ctx, i);
    absl::Status status = tensorflow::LookupResource(ctx, handle, &variable);
    if (!status.ok()) {
      return UnreadableVariable(handle.name(), status.message());
    }
    for (const auto& other : *variables) {
      if (other.get() == variable.get()) {
        return absl::InvalidArgumentError(
            absl::StrCat(ctx->op_kernel().name(), ": two of its variables are ",
                         handle.name()));
      }
    }
    variables->push_back(std::move(variable));
  }
  return absl::OkStatus();
}

VariableLocks::VariableLocks(const Variables& variables) {
  for (const auto& variable : variables) mutexes_.push_back(variable->mu());
  std::sort(mutexes_.begin(), mutexes_.end());
  for (tensorflow::mutex* mutex : mutexes_) mutex->lock();
}

VariableLocks::~VariableLocks() {
  for (tensorflow::mutex* mutex : mutexes_) mutex->unlock();
}

}  // namespace tf_fuse

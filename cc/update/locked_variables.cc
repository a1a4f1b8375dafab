// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/locked_variables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "update/update_counters.h"

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
  for (tensorflow::mutex* mutex : mutexes_) {
    if (mutex->try_lock()) continue;
    const absl::Time begin = absl::Now();
    mutex->lock();
    const int64_t waited = absl::ToInt64Microseconds(absl::Now() - begin);
    waited_us_ += std::max<int64_t>(waited, 1);
  }
  locked_at_ns_ = absl::GetCurrentTimeNanos();
}

int64_t VariableLocks::HeldNs() const {
  // (Somebody may set the clock.)
  return std::max<int64_t>(absl::GetCurrentTimeNanos() - locked_at_ns_, 0);
}

VariableLocks::~VariableLocks() {
  for (tensorflow::mutex* mutex : mutexes_) mutex->unlock();
}

absl::Status CountedUpdate::Init(tensorflow::OpKernelConstruction* ctx,
                                 int variables) {
  int begun = 0;
  absl::Status status = ctx->GetAttr("C", &begun);
  status.Update(ctx->GetAttr("subject", &subject_));
  status.Update(ctx->GetAttr("worker", &worker_));
  if (!status.ok() || begun == 0) return status;
  if (begun > 1 || subject_ < 0 || subject_ >= variables) {
    return absl::InvalidArgumentError(absl::StrCat(
        ctx->def().op(), ": ", begun, " counts, expected 0 or 1, of variable ",
        subject_, " of ", variables));
  }
  is_counted_ = true;
  return status;
}

void CountedUpdate::Add(OpKernelContext* ctx,
                        const VariableLocks& locks) const {
  if (!is_counted_) return;
  const tensorflow::Tensor& begun = ctx->input(ctx->num_inputs() - 1);
  UpdateLog::Update update;
  update.variable = tensorflow::HandleFromInput(ctx, subject_).name();
  update.worker = worker_;
  if (begun.NumElements() == 1) update.begun = begun.flat<int64_t>()(0);
  update.waited_us = locks.waited_us();
  update.took_ns = locks.HeldNs();
  UpdateLog::Get()->Add(update);
}

}  // namespace tf_fuse

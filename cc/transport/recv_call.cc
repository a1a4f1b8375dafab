// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/recv_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tensorflow/core/distributed_runtime/request_id.h"

namespace tf_fuse {

RecvCall::RecvCall(
    std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
    std::string task, int64_t step_id, tensorflow::Device* device,
    const tensorflow::AllocatorAttributes& alloc_attrs)
    : worker_cache_(std::move(worker_cache)),
      task_(std::move(task)),
      device_(device),
      alloc_attrs_(alloc_attrs) {
  request_.set_step_id(step_id);
  request_.set_request_id(tensorflow::GetUniqueRequestId());
}

RecvCall::~RecvCall() { ReleaseWorker(); }

absl::Status RecvCall::Init() {
  worker_ = worker_cache_->GetOrCreateWorker(task_);
  if (worker_ == nullptr) {
    return absl::InternalError(absl::StrCat("No worker known as ", task_));
  }
  return absl::OkStatus();
}

void RecvCall::Start(std::function<void()> recv_done) {
  response_.InitAlloc(device_, alloc_attrs_);
  auto abort_checked = std::make_shared<absl::Notification>();
  worker_->RecvTensorAsync(
      &options_, &request_, &response_,
      [this, abort_checked,
       recv_done = std::move(recv_done)](const absl::Status& status) {
        // The callback may destroy this call: wait until the look below is
        // over.
        abort_checked->WaitForNotification();
        if (!status.ok()) {
          absl::MutexLock lock(&mu_);
          status_.Update(status);
        }
        recv_done();
      });
  // An abort that came before the RPC registered its cancellation did not
  // reach it: look again.
  if (!status().ok()) options_.StartCancel();
  abort_checked->Notify();
}

void RecvCall::StartAbort(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
  }
  options_.StartCancel();
}

absl::Status RecvCall::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void RecvCall::ReleaseWorker() {
  if (worker_ == nullptr) return;
  worker_cache_->ReleaseWorker(task_, worker_);
  worker_ = nullptr;
}

}  // namespace tf_fuse

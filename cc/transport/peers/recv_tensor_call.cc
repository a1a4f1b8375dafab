// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/recv_tensor_call.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/executors.h"
#include "channel/frames/frame_server.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/status.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

// With the text by which TensorFlow's gRPC client says where an error comes
// from: its ClusterCoordinator looks there for "/job:ps", and starts a closure
// anew or ends by that.
absl::Status AsOfTask(const absl::Status& status, const std::string& task) {
  return tensorflow::errors::CreateWithUpdatedMessage(
      status,
      absl::StrCat(status.message(),
                   "\nAdditional GRPC error information from remote target ",
                   task, " while calling /tensorflow.WorkerService/RecvTensor",
                   ":\n:by a data channel"));
}

}  // namespace

RecvCall::RecvCall(
    std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
    std::string task, int64_t step_id, tensorflow::DeviceBase* device,
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
  // `recv_done` may destroy this call, so it must wait for the look below. The
  // answer may come before that look, or even on this thread: whoever is second
  // runs it, and nobody blocks.
  auto pending = std::make_shared<std::atomic<int>>(2);
  auto finish_one = [pending, recv_done = std::move(recv_done)] {
    if (pending->fetch_sub(1) == 1) recv_done();
  };
  if (!StartByChannel(finish_one)) {
    worker_->RecvTensorAsync(&options_, &request_, &response_,
                             [this, finish_one](const absl::Status& status) {
                               if (!status.ok()) Fail(status);
                               finish_one();
                             });
  }
  // An abort that came before the RPC registered its cancellation did not reach
  // it: look again.
  if (!status().ok()) options_.StartCancel();
  finish_one();
}

bool RecvCall::StartByChannel(const std::function<void()>& finish_one) {
  if (frames_ == nullptr) return false;
  const std::shared_ptr<FrameClient> frames = std::move(frames_);
  std::string request = request_.SerializeAsString();
  if (request.size() > kMaxFrameRequestBytes) return false;
  by_channel_ = true;  // Before the answer.
  const uint64_t call = frames->Ask(
      frame_token_, std::move(request), max_bytes_,
      [this, finish_one](const absl::Status& status, const Tensor& frame) {
        frame_ = frame;
        if (!status.ok()) Fail(AsOfTask(status, task_));
        finish_one();
      });
  if (call == 0) {
    by_channel_ = false;
    return false;
  }
  // (Elsewhere: an abort holds locks that what follows the receive takes.)
  options_.SetCancelCallback([frames, call] {
    ScheduleElsewhere([frames, call] { frames->Cancel(call); });
  });
  return true;
}

void RecvCall::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  status_.Update(status);
}

void RecvCall::UseChannel(std::shared_ptr<FrameClient> frames,
                          uint64_t frame_token, uint64_t max_bytes) {
  frames_ = std::move(frames);
  frame_token_ = frame_token;
  max_bytes_ = max_bytes;
}

void RecvCall::StartAbort(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    // A cancellation is never the root of an error. The executor says so too,
    // but only of what comes after all callbacks of the cancellation have run;
    // before, a session's master would take it for one.
    status_.Update(absl::IsCancelled(status)
                       ? tensorflow::StatusGroup::MakeDerived(status)
                       : status);
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

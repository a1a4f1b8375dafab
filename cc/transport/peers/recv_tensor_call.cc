// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/recv_tensor_call.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/platform/status.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

// The bytes of a RecvTensorResponse.
class BytesSource : public tensorflow::TensorResponse::Source {
 public:
  explicit BytesSource(absl::string_view bytes) : bytes_(bytes) {}

  google::protobuf::io::ZeroCopyInputStream* contents() override {
    stream_.emplace(bytes_.data(), static_cast<int>(bytes_.size()));
    return &*stream_;
  }

 private:
  const absl::string_view bytes_;
  std::optional<google::protobuf::io::ArrayInputStream> stream_;
};

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
  const PeerCalls peer = std::move(peer_);
  by_channel_ = true;  // Before the answer.
  const bool sent = StartPeerCall(
      peer, method_, request_, max_bytes_, &options_,
      [this, finish_one](const absl::Status& status, const Tensor& answer) {
        if (status.ok()) {
          TakeAnswer(answer);
        } else {
          Fail(status);
        }
        finish_one();
      });
  if (!sent) by_channel_ = false;
  return sent;
}

void RecvCall::TakeAnswer(const Tensor& answer) {
  if (method_ == v1::CALL_METHOD_FRAME) {
    frame_ = answer;
    return;
  }
  BytesSource source({static_cast<const char*>(answer.data()),
                      static_cast<size_t>(answer.TotalBytes())});
  const absl::Status parsed = response_.ParseFrom(&source);
  if (!parsed.ok()) Fail(parsed);
}

void RecvCall::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  status_.Update(status);
}

void RecvCall::UseChannel(PeerCalls peer, v1::CallMethod method,
                          uint64_t max_bytes) {
  peer_ = std::move(peer);
  method_ = method;
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

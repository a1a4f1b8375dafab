// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/frames/frame_client.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

absl::Status StatusOf(const v1::FrameAnswer& answer) {
  absl::Status status(CodeOfPeer(answer.code()), answer.text());
  for (const auto& [url, payload] : answer.payloads()) {
    status.SetPayload(url, absl::Cord(payload));
  }
  return status;
}

}  // namespace

uint64_t FrameClient::Ask(uint64_t frame_token, std::string request,
                          uint64_t max_bytes, FrameDone done) {
  auto under_way = std::make_unique<Call>();
  under_way->max_bytes = max_bytes;
  under_way->done = std::move(done);
  uint64_t call;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return 0;
    call = ++calls_;
    under_way_[call] = std::move(under_way);
  }
  v1::ChannelMessage message;
  message.mutable_frame_request()->set_call(call);
  message.mutable_frame_request()->set_frame_token(frame_token);
  const auto bytes = std::make_shared<const std::string>(std::move(request));
  // (An error closes the channel, which ends the call.)
  connection_->Send(message, bytes->data(), bytes->size(),
                    [bytes](const absl::Status&) {});
  return call;
}

std::unique_ptr<FrameClient::Call> FrameClient::Take(uint64_t call) {
  absl::MutexLock lock(&mu_);
  auto found = under_way_.find(call);
  if (found == under_way_.end()) return nullptr;
  std::unique_ptr<Call> taken = std::move(found->second);
  under_way_.erase(found);
  return taken;
}

void FrameClient::Cancel(uint64_t call) {
  const std::unique_ptr<Call> cancelled = Take(call);
  if (cancelled == nullptr) return;
  // (Without the lock: the channel's thread takes both.)
  if (cancelled->frame.TotalBytes() > 0) {
    connection_->Divert(static_cast<const char*>(cancelled->frame.data()),
                        cancelled->frame.TotalBytes());
  }
  v1::ChannelMessage message;
  message.mutable_cancel()->set_call(call);
  message.mutable_cancel()->set_is_frame(true);
  connection_->Send(message);
  cancelled->done(absl::CancelledError("the receive was cancelled"), Tensor());
}

absl::StatusOr<char*> FrameClient::DestinationOf(const v1::FrameAnswer& answer,
                                                 uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  auto found = under_way_.find(answer.call());
  if (found == under_way_.end()) return nullptr;  // Cancelled meanwhile.
  Call& call = *found->second;
  if (bytes > call.max_bytes) {
    call.status = absl::DataLossError(
        absl::StrCat("bad answer: a frame of ", bytes,
                     " bytes, expected at most ", call.max_bytes));
    return nullptr;
  }
  call.frame = Tensor(tensorflow::DT_UINT8,
                      tensorflow::TensorShape({static_cast<int64_t>(bytes)}));
  if (!call.frame.IsInitialized()) {
    call.frame = Tensor();
    call.status = absl::ResourceExhaustedError(
        absl::StrCat("out of memory for a frame of ", bytes, " bytes"));
    return nullptr;
  }
  return static_cast<char*>(call.frame.data());
}

void FrameClient::OnAnswer(const v1::FrameAnswer& answer, uint64_t bytes) {
  const std::unique_ptr<Call> call = Take(answer.call());
  if (call == nullptr) return;
  absl::Status status = call->status;
  if (answer.code() != 0) {
    status = StatusOf(answer);
  } else if (bytes == 0) {
    status = absl::DataLossError("bad answer: a frame of no bytes");
  }
  call->done(status, status.ok() ? call->frame : Tensor());
}

void FrameClient::OnClosed(const absl::Status& status) {
  std::map<uint64_t, std::unique_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    calls.swap(under_way_);
  }
  for (const auto& [number, call] : calls) call->done(status, Tensor());
}

}  // namespace tf_fuse

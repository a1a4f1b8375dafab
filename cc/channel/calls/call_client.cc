// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/calls/call_client.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/executors.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

absl::Status StatusOf(const v1::CallAnswer& answer) {
  absl::Status status(CodeOfPeer(answer.code()), answer.text());
  for (const v1::CallAnswer::Payload& payload : answer.payloads()) {
    status.SetPayload(payload.url(), absl::Cord(payload.value()));
  }
  return status;
}

}  // namespace

uint64_t CallClient::Start(uint64_t server, v1::CallMethod method,
                           std::string request, uint64_t max_bytes,
                           CallDone done) {
  auto under_way = std::make_unique<Call>();
  under_way->max_bytes = max_bytes;
  under_way->done = std::move(done);
  const auto bytes = std::make_shared<const std::string>(std::move(request));
  // With the lock, so that a cancellation is sent after the request.
  absl::MutexLock lock(&mu_);
  if (closed_) return 0;
  const uint64_t call = ++calls_;
  under_way_[call] = std::move(under_way);
  v1::ChannelMessage message;
  v1::CallRequest* const sent = message.mutable_call_request();
  sent->set_call(call);
  sent->set_server(server);
  sent->set_method(method);
  // (An error closes the channel, which ends the call.)
  connection_->Send(message, {*bytes}, [bytes](const absl::Status&) {});
  return call;
}

std::unique_ptr<CallClient::Call> CallClient::Take(uint64_t call) {
  absl::MutexLock lock(&mu_);
  auto found = under_way_.find(call);
  if (found == under_way_.end()) return nullptr;
  std::unique_ptr<Call> taken = std::move(found->second);
  under_way_.erase(found);
  return taken;
}

void CallClient::Cancel(uint64_t call) {
  const std::unique_ptr<Call> cancelled = Take(call);
  if (cancelled == nullptr) return;
  // (Without the lock: the channel's thread takes both.)
  if (cancelled->answer.TotalBytes() > 0) {
    connection_->Divert(static_cast<const char*>(cancelled->answer.data()),
                        cancelled->answer.TotalBytes());
  }
  v1::ChannelMessage message;
  message.mutable_cancel()->set_call(call);
  message.mutable_cancel()->set_is_call(true);
  connection_->Send(message);
  cancelled->done(absl::CancelledError("the call was cancelled"), Tensor());
}

void CallClient::CancelElsewhere(uint64_t call) {
  {
    absl::MutexLock lock(&mu_);
    to_cancel_.push_back(call);
    if (std::exchange(is_cancelling_, true)) return;
  }
  ScheduleElsewhere([self = shared_from_this()] { self->CancelAll(); });
}

void CallClient::CancelAll() {
  while (true) {
    std::vector<uint64_t> calls;
    {
      absl::MutexLock lock(&mu_);
      calls.swap(to_cancel_);
      is_cancelling_ = !calls.empty();
    }
    if (calls.empty()) return;
    for (const uint64_t call : calls) Cancel(call);
  }
}

absl::StatusOr<char*> CallClient::DestinationOf(const v1::CallAnswer& answer,
                                                uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  auto found = under_way_.find(answer.call());
  if (found == under_way_.end()) return nullptr;  // Cancelled meanwhile.
  Call& call = *found->second;
  if (bytes > call.max_bytes) {
    call.status = absl::DataLossError(
        absl::StrCat("data channel: an answer of ", bytes,
                     " bytes, expected at most ", call.max_bytes));
    return nullptr;
  }
  call.answer = Tensor(tensorflow::DT_UINT8,
                       tensorflow::TensorShape({static_cast<int64_t>(bytes)}));
  if (!call.answer.IsInitialized()) {
    call.answer = Tensor();
    call.status = absl::ResourceExhaustedError(
        absl::StrCat("out of memory for an answer of ", bytes, " bytes"));
    return nullptr;
  }
  return static_cast<char*>(call.answer.data());
}

void CallClient::OnAnswer(const v1::CallAnswer& answer, uint64_t bytes) {
  const std::unique_ptr<Call> call = Take(answer.call());
  if (call == nullptr) return;
  absl::Status status = call->status;
  if (answer.code() != 0) {
    status = StatusOf(answer);
  }
  call->done(status, status.ok() ? call->answer : Tensor());
}

void CallClient::OnClosed(const absl::Status& status) {
  std::map<uint64_t, std::unique_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    calls.swap(under_way_);
  }
  for (const auto& [number, call] : calls) call->done(status, Tensor());
}

}  // namespace tf_fuse

// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/frames/frame_server.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "channel/frames/frame_source.h"

namespace tf_fuse {

namespace {

constexpr size_t kMaxFrameCalls = 1 << 16;
// gRPC limits texts and payloads likewise.
constexpr size_t kMaxStatusBytes = 8 << 10;

void PutStatus(const absl::Status& status, v1::FrameAnswer* answer) {
  answer->set_code(static_cast<int>(status.code()));
  answer->set_text(std::string(status.message().substr(0, kMaxStatusBytes)));
  size_t room = kMaxStatusBytes;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    const size_t size = url.size() + payload.size();
    if (size > room) return;
    room -= size;
    (*answer->mutable_payloads())[std::string(url)] = std::string(payload);
  });
}

}  // namespace

absl::StatusOr<char*> FrameServer::DestinationOf(uint64_t bytes) {
  if (bytes > kMaxFrameRequestBytes) {
    return absl::DataLossError(
        absl::StrCat("data channel: a request for a frame of ", bytes,
                     " bytes, at most ", kMaxFrameRequestBytes, " are read"));
  }
  request_.resize(bytes);
  return request_.data();
}

absl::Status FrameServer::Begin(uint64_t call,
                                const std::shared_ptr<Call>& under_way) {
  absl::MutexLock lock(&mu_);
  if (calls_.size() >= kMaxFrameCalls) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "data channel: ", kMaxFrameCalls, " requests already wait"));
  }
  calls_[call] = under_way;
  return absl::OkStatus();
}

absl::Status FrameServer::OnRequest(const v1::FrameRequest& request,
                                    uint64_t bytes) {
  const uint64_t call = request.call();
  {
    absl::MutexLock lock(&mu_);
    if (calls_.count(call) > 0) {
      return absl::DataLossError(
          "data channel: two requests have the same number");
    }
  }
  const auto under_way = std::make_shared<Call>();
  absl::Status status;
  if (bytes == 0 || !under_way->request.ParseFromString(request_)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("data channel: a request for a frame of ", bytes,
                     " bytes, expected a RecvTensorRequest"));
  }
  FrameSource* const source = FrameSource::Find(request.frame_token());
  if (status.ok() && source == nullptr) {
    status = absl::UnavailableError("the task has ended");
  }
  if (status.ok()) status = Begin(call, under_way);
  if (!status.ok()) {
    Answer(call, status, tensorflow::Tensor());
    return absl::OkStatus();
  }
  source->AnswerFrameRequest(
      &under_way->options, &under_way->request,
      [self = shared_from_this(), call, under_way](
          const absl::Status& status, const tensorflow::Tensor& frame) {
        {
          absl::MutexLock lock(&self->mu_);
          self->calls_.erase(call);
        }
        self->Answer(call, status, frame);
      });
  return absl::OkStatus();
}

void FrameServer::Answer(uint64_t call, const absl::Status& status,
                         const tensorflow::Tensor& frame) {
  v1::ChannelMessage message;
  v1::FrameAnswer* answer = message.mutable_frame_answer();
  answer->set_call(call);
  if (!status.ok()) {
    PutStatus(status, answer);
    return connection_->Send(message);
  }
  // (The frame lives until it is sent.)
  connection_->Send(message, static_cast<const char*>(frame.data()),
                    frame.TotalBytes(), [frame](const absl::Status&) {});
}

void FrameServer::Cancel(uint64_t call) {
  std::shared_ptr<Call> under_way;
  {
    absl::MutexLock lock(&mu_);
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    under_way = found->second;
  }
  under_way->options.StartCancel();
}

void FrameServer::CancelAll() {
  std::map<uint64_t, std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mu_);
    calls = calls_;  // Each leaves the map when it is answered.
  }
  for (const auto& [call, under_way] : calls) under_way->options.StartCancel();
}

}  // namespace tf_fuse

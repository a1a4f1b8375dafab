// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/calls/call_server.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/executors.h"

namespace tf_fuse {

namespace {

constexpr size_t kMaxCallsAtOnce = 1 << 16;
// gRPC limits texts and payloads likewise.
constexpr size_t kMaxStatusBytes = 8 << 10;

void PutStatus(const absl::Status& status, v1::CallAnswer* answer) {
  answer->set_code(static_cast<int>(status.code()));
  answer->set_text(std::string(status.message().substr(0, kMaxStatusBytes)));
  size_t room = kMaxStatusBytes;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    const size_t size = url.size() + payload.size();
    if (size > room) return;
    room -= size;
    v1::CallAnswer::Payload* const one = answer->add_payloads();
    one->set_url(std::string(url));
    one->set_value(std::string(payload));
  });
}

}  // namespace

absl::StatusOr<char*> CallServer::DestinationOf(uint64_t bytes) {
  if (bytes > kMaxCallRequestBytes) {
    return absl::DataLossError(absl::StrCat("data channel: a request of ",
                                            bytes, " bytes, at most ",
                                            kMaxCallRequestBytes, " are read"));
  }
  request_.resize(bytes);
  return request_.data();
}

absl::Status CallServer::Begin(uint64_t call, const Options& options) {
  absl::MutexLock lock(&mu_);
  if (calls_.count(call) > 0) {
    return absl::DataLossError(
        "data channel: two requests have the same number");
  }
  if (calls_.size() + unsent_ >= kMaxCallsAtOnce) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "data channel: ", calls_.size(), " requests already wait, and ",
        unsent_, " answers; the limit is ", kMaxCallsAtOnce));
  }
  calls_[call] = options;
  return absl::OkStatus();
}

absl::Status CallServer::OnRequest(const v1::CallRequest& request,
                                   uint64_t bytes) {
  const uint64_t call = request.call();
  if (bytes == 0) request_.clear();
  const auto options = std::make_shared<tensorflow::CallOptions>();
  absl::Status status = Begin(call, options);
  if (absl::IsDataLoss(status)) return status;
  if (!status.ok()) {
    Answer(call, status, {});
    return absl::OkStatus();
  }
  // What waits for a step may wait longer than the channel is open.
  auto done = [weak = weak_from_this(), call, options](
                  const absl::Status& status, AnswerBytes bytes) {
    const std::shared_ptr<CallServer> self = weak.lock();
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      if (self->calls_.erase(call) == 0) return;  // Cancelled.
    }
    self->Answer(call, status, std::move(bytes));
  };
  CallHandler* const handler = CallHandler::Find(request.server());
  if (handler == nullptr) {
    done(absl::UnavailableError("the task has ended"), {});
  } else {
    handler->Handle(request.method(), request_, options.get(), std::move(done));
  }
  return absl::OkStatus();
}

void CallServer::Answer(uint64_t call, const absl::Status& status,
                        AnswerBytes bytes) {
  v1::ChannelMessage message;
  v1::CallAnswer* answer = message.mutable_call_answer();
  answer->set_call(call);
  if (!status.ok()) {
    PutStatus(status, answer);
    bytes = AnswerBytes();
  }
  {
    absl::MutexLock lock(&mu_);
    ++unsent_;
  }
  connection_->Send(message, std::move(bytes.pieces),
                    [weak = weak_from_this(),
                     owner = std::move(bytes.owner)](const absl::Status&) {
                      const std::shared_ptr<CallServer> self = weak.lock();
                      if (self == nullptr) return;
                      absl::MutexLock lock(&self->mu_);
                      --self->unsent_;
                    });
}

void CallServer::Cancel(uint64_t call) {
  Options options;
  {
    absl::MutexLock lock(&mu_);
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    options = std::move(found->second);
    calls_.erase(found);
  }
  // What is cancelled may call back anything.
  ScheduleElsewhere([options] { options->StartCancel(); });
}

void CallServer::CancelAll() {
  std::map<uint64_t, Options> calls;
  {
    absl::MutexLock lock(&mu_);
    calls.swap(calls_);
  }
  if (calls.empty()) return;
  ScheduleElsewhere([calls = std::move(calls)] {
    for (const auto& [call, options] : calls) options->StartCancel();
  });
}

}  // namespace tf_fuse
